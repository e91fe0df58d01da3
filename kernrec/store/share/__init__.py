"""Sharing rows: immutable segments named by their content, and manifests that refer to them.

    segments/<sha256>.parquet   rows of one table, as `db/schema` has them; the name is the SHA-256 of the file
    models/<sha256>             a trained model, a calibration, or its card
    manifest.json               which segments and models make a bundle, how many rows, whose, under which licence
    manifest.sig                Ed25519 signature of the bytes of manifest.json by its owner

A remote has, in place of the manifest, one for each push and retraction:

    manifests/<sha256>.json     a manifest or a retraction (manifest.py), by its content
    manifests/<sha256>.sig      its signature
    remote.json                 the identity of the remote, which its manifests name
    index.json                  the names of both, for readers of a web server, who cannot list them

A place for these files is a `Place`: a folder or a zip file (place.py), an object store (object_store.py); anything
that can read, write and list names can be one. Nothing is ever changed: a segment is written before a manifest refers
to it, so a reader never sees a half bundle, writers need no lock, and what is there already need not be written again.

    leaving = outgoing(database, selection, ...)       rows -> Parquet files, manifest (outgoing.py, privacy.py)
    write_bundle(place, leaving.manifest, ...)         -> place (bundle.py)
    bundle = read_bundle(place)                        manifest checked, nothing else read
    import_bundle(database, bundle)                    files checked, rows checked by a child, added
    push(remote, database, ...); pull(remote)          the same for remotes (push.py, pull.py)
    retract_here(path, ...); retract_there(remote, ...)    measurements are taken back (retract.py)

Whatever is read is hostile until checked: names and numbers of the manifest (manifest.py), sizes and hashes of files
(bundle.py), the rows themselves (`kernrec.store.intake`).
"""

from kernrec.store.share.bundle import Bundle, import_bundle, read_bundle, write_bundle
from kernrec.store.share.manifest import Manifest, Model, Segment
from kernrec.store.share.outgoing import Selection, write_segments
from kernrec.store.share.place import Folder, Place, ZipFile, place_at

__all__ = [
    "Bundle",
    "Folder",
    "Manifest",
    "Model",
    "Place",
    "Segment",
    "Selection",
    "ZipFile",
    "import_bundle",
    "place_at",
    "read_bundle",
    "write_bundle",
    "write_segments",
]
