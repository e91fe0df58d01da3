import pytest

from kernrec.errors import UsageError
from kernrec.kernel import Space


@pytest.fixture(scope="module")
def config(tiled, ada):
    return Space(tiled, 89, ada, "f32", "nn").config(0)


def test_defines_contain_only_compiled_tunables(tiled, config):
    defines = tiled.defines(config, "f32", "nn")
    assert defines["BLOCK_M"] == str(config["block_m"])
    assert defines["DTYPE_F32"] == defines["LAYOUT_NN"] == "1"
    assert "SPLIT_K" not in defines
    assert "RASTER" not in defines


def test_variant_key_depends_exactly_on_compiled_tunables(tiled, config):
    key = tiled.variant_key(config, "f32", "nn")
    assert len(key) == 16
    for tunable in tiled.tunables:
        other = next(value for value in tunable.values if value != config[tunable.name])
        changed = tiled.variant_key(config | {tunable.name: other}, "f32", "nn")
        assert (changed == key) == tunable.launch
    assert tiled.variant_key(config, "f16", "nn") != key


@pytest.mark.parametrize(("change", "message"), [
    ({"blockm": 32}, "unknown tunable of tiled 'blockm'; did you mean block_m"),
    ({"block_m": 33}, "tiled: block_m is 33; expected 32, 64, 128, 256"),
    ({"block_m": "32"}, "tiled: block_m is '32'; expected"),
])  # fmt: skip
def test_config_of_another_kernel_is_refused(tiled, config, change, message):
    with pytest.raises(UsageError, match=message):
        tiled.config(config | change)
    with pytest.raises(UsageError, match="is missing stages"):
        tiled.config({name: value for name, value in config.items() if name != "stages"})
