"""How much a network is expected to lose by the present choices of its layers, for JSON."""

from typing import Any

from kernrec.recommender.network import NetworkAnswer
from kernrec.recommender.recommender import Recommender


def with_regrets(recommender: Recommender, answer: NetworkAnswer) -> dict[str, Any]:
    """A network's answer as plain values, with the expected regret of each objective: of each layer, and of the whole.

    The whole loses what its layers lose, each as often as the network has it; as a share of what all of them cost.
    """
    document = answer.as_dict()
    lost: dict[str, float] = {}
    spent: dict[str, float] = {}
    for layer, values in zip(answer.layers, document["layers"], strict=True):
        regrets = recommender.regrets(layer.answer)
        values["regret"] = {str(regret.objective): regret.as_dict() for regret in regrets}
        for regret in regrets:
            _, cost, _ = regret.contenders[0]
            name = str(regret.objective)
            lost[name] = lost.get(name, 0.0) + layer.count * cost * regret.expected
            spent[name] = spent.get(name, 0.0) + layer.count * cost
    return document | {"regret": {name: {"expected": lost[name] / spent[name]} for name in lost}}
