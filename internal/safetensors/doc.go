// Package safetensors reads and writes the safetensors file format for the few
// element types Sheaf uses: model weights of the simulated engine and train
// batches.
//
// A file is an 8-byte little-endian header length, a JSON header, and the
// tensors' bytes without gaps. [Write] streams: it never copies a slice, keeps
// the tensors in the order given, and writes the same bytes for the same input.
// [Parse] is strict: a file that it accepts has every offset in range, no
// overlap, no hole, no duplicate name and sizes that agree with the shapes.
//
// The header is padded so that the data starts on an 8-byte boundary. The
// format has no padding between tensors, so a writer who wants every tensor
// aligned lists the wide types first.
package safetensors

// DType names an element type as the header does.
type DType string

// The element types this package knows.
const (
	U8  DType = "U8"
	I32 DType = "I32"
	F32 DType = "F32"
	I64 DType = "I64"
	U64 DType = "U64"
)

// Size is the number of bytes of one element, 0 for an unknown type.
func (d DType) Size() int {
	switch d {
	case U8:
		return 1
	case I32, F32:
		return 4
	case I64, U64:
		return 8
	default:
		return 0
	}
}

// Element is a Go type that has a [DType].
type Element interface {
	uint8 | int32 | float32 | int64 | uint64
}

// dtypeOf returns the DType of T.
func dtypeOf[T Element]() DType {
	var zero T
	switch any(zero).(type) {
	case uint8:
		return U8
	case int32:
		return I32
	case float32:
		return F32
	case int64:
		return I64
	default:
		return U64
	}
}
