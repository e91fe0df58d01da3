-- Keys of the kernels and profiles that other people made. Like `merged`, this table is not copied by exports and merges.
-- If the user analyzes the same source, the row has no entry. In files with older merged rows, it is unknown who made a
-- kernel, so all kernels get an entry.

CREATE TABLE merged_row (
    row_id VARCHAR NOT NULL,
    signer VARCHAR NOT NULL    -- as in `merged`
);
INSERT INTO merged_row SELECT kernel_id, '' FROM kernel WHERE EXISTS (FROM merged);
