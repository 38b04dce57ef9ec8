// Package wire owns the encoding of everything that Sheaf stores or sends on its
// bus: a two-byte head (schema version, kind) and one CBOR item (RFC 8949).
//
// The nouns of pkg/rollout are encoded as they are, field by field under their
// own names, so that a new field cannot be forgotten here; arrays of a value per
// token are packed (little endian, RFC 8746 in spirit) because they are most of
// the bytes. Golden files in testdata pin the encoding, and a test fills every
// field by reflection and reads it back.
//
// Unknown fields are errors: a reader that cannot understand a record must not
// pass it on with a part missing.
package wire
