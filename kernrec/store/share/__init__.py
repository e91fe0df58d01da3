"""Share rows in places: stores of immutable signed bundles, each named by a hash of its content.

A bundle is a zip file or a folder:

    segments/<sha256>.parquet   rows of one table of `db/schema`
    manifest.json               the bundle's segments, number of rows, owner and license
    manifest.sig                Ed25519 signature of the bytes of manifest.json by its owner

A place is a folder, an object store, a web location or a git folder:

    <gpu>/<day>-<8 digits of the key>-<12 digits of the manifest's hash>.zip    a signed bundle of one GPU
    withdrawn/<sha256>.json                                                     rows that their signer withdraws, signed
    index.json                                                                  the names, for readers who cannot list

Files never change, so writers need no lock. `place.py` and `servers.py` read, write and list names;
`push`, `pull` and `withdraw` work with any of them. All pulled rows enter one database (`pulled.py`).

All input is untrusted until it is checked: names and numbers in documents (`manifest.py`), sizes and hashes of files
(`bundle.py`), and the rows (`kernrec.store.intake`).
"""
