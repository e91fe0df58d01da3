"""Share rows of databases with other people through folders, buckets or servers, which are called places.

A place stores signed bundles. A bundle is a zip file or a folder:

    segments/<sha256>.parquet   rows of one table of `db/schema`
    manifest.json               the bundle's segments, number of rows, owner and license
    manifest.sig                Ed25519 signature of the bytes of manifest.json by its owner

A place has these files:

    <gpu>/<day>-<8 digits of the key>-<12 digits of the manifest's hash>.zip    a signed bundle of one GPU
    withdrawn/<sha256>.json                                                     a signed withdrawal of some rows
    index.json                                                                  names of all files, for web servers

A withdrawal is a signer's request to stop using some rows. Bundles and withdrawals never change, so writers need no
lock. All input is untrusted until it is checked.
"""
