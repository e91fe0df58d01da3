-- Which kernels and profiles came from others, by key. As `merged`, this is no content: it says how a row came to be
-- here, and leaves with none. Whoever analyzes the same source has the row, too, which then has no entry. In a file that
-- others' rows were merged into before this step, nobody knows whose a kernel is.

CREATE TABLE merged_row (
    row_id VARCHAR NOT NULL,
    signer VARCHAR NOT NULL    -- as in `merged`
);
INSERT INTO merged_row SELECT kernel_id, '' FROM kernel WHERE EXISTS (FROM merged);
