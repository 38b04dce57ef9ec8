"""Writes the Parquet files of this folder. Needs pyarrow."""

import pyarrow as pa
import pyarrow.parquet as pq

message = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
extra = pa.struct([
    ("a", pa.int32()), ("f", pa.float64()), ("ok", pa.bool_()), ("big", pa.uint64()),
    ("tags", pa.list_(pa.string())), ("deep", pa.list_(pa.list_(pa.int32()))), ("map", pa.map_(pa.string(), pa.int32())),
])
table = pa.table({
    "prompt": pa.array([
        [{"role": "user", "content": "hi"}],
        [{"role": "system", "content": None}, {"role": "user", "content": "ü<\"x"}],
        [],
        [{"role": "user", "content": "last"}],
    ], message),
    "text": pa.array(["one", "two", None, "four"]),
    "label": pa.array(["4", None, "5", ""]),
    "count": pa.array([1, 2, None, 4], pa.int64()),
    "metadata": pa.array([
        {"a": 1, "f": 0.5, "ok": True, "big": 2**64 - 1, "tags": ["x", None], "deep": [[1, 2], [], None], "map": [("k", 1), ("l", None)]},
        None,
        {"a": None, "f": None, "ok": None, "big": None, "tags": None, "deep": [], "map": []},
        {"a": -1, "f": 1e-7, "ok": False, "big": 0, "tags": [], "deep": [[3]], "map": None},
    ], extra),
    "tools": pa.array(['[{"type":"function"}]', None, "", "[]"]),
    "bytes": pa.array([b"\xff", None, b"", b"ok"], pa.binary()),
    "nan": pa.array([float("nan"), 1, 2, 3], pa.float32()),
})
pq.write_table(table, "new.parquet", compression="zstd", row_group_size=3, data_page_version="2.0")
pq.write_table(table, "old.parquet", compression="snappy", use_compliant_nested_type=False, version="1.0", use_dictionary=False)
