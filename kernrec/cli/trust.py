"""`kernrec db trust`: the keys that the user trusts, and the user's own key."""

from typing import Annotated

import typer

from kernrec import paths
from kernrec.cli import options
from kernrec.cli.format import print_notes
from kernrec.cli.table import print_table
from kernrec.errors import UsageError
from kernrec.util.human import counted


class TrustOptions(options.Options):
    databases_used = options.OWN
    key: Annotated[str | None, typer.Argument(help="Public key. Default: list the trusted keys.")] = None
    name: Annotated[str | None, typer.Argument(help="Name of the key's owner in answers.")] = None
    remove: Annotated[bool, typer.Option("--remove", help="Stop trusting this key or name.")] = False
    own: Annotated[bool, typer.Option("--own", help="Print your public key; create it if there is none.")] = False


@options.takes(TrustOptions)
def trust(wanted: TrustOptions) -> None:
    """Trust the rows that a key signs, or list the keys that you trust.

    Unsigned rows and rows of unknown keys are refused. If you remove a key, rows that it signed are no longer used.
    Give your own public key (--own) to your team. The private key stays in a file that only you can read.
    """
    from kernrec.store import keys

    if wanted.own:
        if wanted.key or wanted.name or wanted.remove:
            raise UsageError("--own prints your own key; give no other option with it")
        print(keys.make_own_key())
    elif wanted.key is None:
        if wanted.name or wanted.remove:
            raise UsageError("name the key: `kernrec db trust KEY NAME`")
        own = keys.own_key()
        rows = ([["you", own]] if own else []) + [[title, each] for each, title in keys.trusted().items()]
        if rows:
            print_table(None, [("signer", "left"), ("key", "left")], rows)
        else:
            print_notes(["no key is trusted"])
    elif wanted.remove:
        _remove(wanted.key)
    else:
        keys.trust(wanted.key, wanted.name)
        print(f"{wanted.key}: trusted as {keys.signer_name(wanted.key)}; `kernrec db pull` accepts its bundles")


def _remove(key: str) -> None:
    """Remove a trusted key. If the key was never trusted, drop the rows that `--untrusted` accepted."""
    from kernrec.store import Database, keys
    from kernrec.store.share.pulled import drop_signer
    from kernrec.store.share.withdraw import forget

    if keys.is_public_key(key) and key not in keys.trusted() and (dropped := drop_signer(paths.pulled(), key)):
        print(f"{counted(dropped, 'measurement')} no longer used")
        return
    gone = keys.distrust(key)
    print(f"{gone}: no longer trusted")
    if dropped := drop_signer(paths.pulled(), gone):
        print(f"{counted(dropped, 'measurement')} no longer used")
    if (own := paths.user_database()).exists():
        with Database.open(own, read_only=False) as database:
            if again := forget(database, gone):
                print(f"{own}: answering again, as before it withdrew them: {counted(again, 'measurement')}")
