"""Share rows of databases through places. A place stores signed bundles of rows that never change. The name of each
bundle contains a hash of its content.

A bundle is a zip file or a folder:

    segments/<sha256>.parquet   rows of one table of `db/schema`
    manifest.json               the bundle's segments, number of rows, owner and license
    manifest.sig                Ed25519 signature of the bytes of manifest.json by its owner

A place is a folder, an object store, a web location or a git folder:

    <gpu>/<day>-<8 digits of the key>-<12 digits of the manifest's hash>.zip    a signed bundle of one GPU
    withdrawn/<sha256>.json                                                     rows that their signer withdraws, signed
    index.json                                                                  the names, for readers who cannot list

Files never change, so writers need no lock. The modules `place.py` and `servers.py` read, write and list the files of a
place; `push`, `pull` and `withdraw` work with any kind of place. All pulled rows are added to one database
(`pulled.py`).

All input is untrusted until it is checked. This applies to names and numbers in documents (`manifest.py`), to sizes and
hashes of files (`bundle.py`), and to the rows (`kernrec.store.intake`).
"""
