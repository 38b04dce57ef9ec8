package safetensors

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"unsafe"
)

// Tensor is one named tensor to be written. Make it with [Of] or [Stream].
type Tensor struct {
	name  string
	dtype DType
	shape []int
	write func(io.Writer) error
	have  int64 // elements that write will produce, -1 when only writing tells
}

// Of describes a tensor whose elements are the concatenation of parts. The parts
// are not copied: they must not change until [Write] has returned. A nil shape
// means one dimension of as many elements as there are.
func Of[T Element](name string, shape []int, parts ...[]T) Tensor {
	var n int64
	for _, part := range parts {
		n += int64(len(part))
	}
	if shape == nil {
		shape = []int{int(n)}
	}
	return Tensor{name: name, dtype: dtypeOf[T](), shape: shape, have: n, write: func(w io.Writer) error {
		for _, part := range parts {
			if err := writeElements(w, part); err != nil {
				return err
			}
		}
		return nil
	}}
}

// Stream describes a tensor whose little-endian bytes write produces when the
// file is written. Producing more or fewer bytes than the shape needs fails the
// whole [Write].
func Stream(name string, dtype DType, shape []int, write func(io.Writer) error) Tensor {
	return Tensor{name: name, dtype: dtype, shape: shape, have: -1, write: write}
}

// Write writes a whole file to w: metadata under "__metadata__" (left out when
// empty) and the tensors in the order given. It buffers nothing but the header.
func Write(w io.Writer, metadata map[string]string, tensors ...Tensor) error {
	header, err := encodeHeader(metadata, tensors)
	if err != nil {
		return err
	}
	if _, err := w.Write(header); err != nil {
		return fmt.Errorf("write the header: %w", err)
	}
	for _, t := range tensors {
		count := countingWriter{w: w}
		if err := t.write(&count); err != nil {
			return fmt.Errorf("write tensor %q: %w", t.name, err)
		}
		if want, _ := byteSize(t.dtype, t.shape); count.n != want {
			return fmt.Errorf("tensor %q of shape %v wrote %d bytes instead of %d", t.name, t.shape, count.n, want)
		}
	}
	return nil
}

// encodeHeader returns the length prefix and the padded header.
func encodeHeader(metadata map[string]string, tensors []Tensor) ([]byte, error) {
	buf := append(make([]byte, 8, 256), '{')
	if len(metadata) > 0 {
		buf = append(buf, `"__metadata__":{`...)
		for i, key := range slices.Sorted(maps.Keys(metadata)) {
			if i > 0 {
				buf = append(buf, ',')
			}
			buf = append(appendString(buf, key), ':')
			buf = appendString(buf, metadata[key])
		}
		buf = append(buf, '}')
	}
	seen := make(map[string]bool, len(tensors))
	var offset int64
	for _, t := range tensors {
		if t.name == metadataKey || seen[t.name] {
			return nil, fmt.Errorf("tensor name %q is reserved or used twice", t.name)
		}
		seen[t.name] = true
		size, err := byteSize(t.dtype, t.shape)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", t.name, err)
		}
		if t.have >= 0 && t.have*int64(t.dtype.Size()) != size {
			return nil, fmt.Errorf("tensor %q has %d elements, which do not fill its shape %v", t.name, t.have, t.shape)
		}
		if len(buf) > 9 {
			buf = append(buf, ',')
		}
		buf = append(appendString(buf, t.name), `:{"dtype":"`...)
		buf = append(append(buf, t.dtype...), `","shape":[`...)
		for i, dim := range t.shape {
			if i > 0 {
				buf = append(buf, ',')
			}
			buf = fmt.Append(buf, dim)
		}
		buf = fmt.Appendf(buf, `],"data_offsets":[%d,%d]}`, offset, offset+size)
		offset += size
	}
	buf = append(buf, '}')
	for len(buf)%8 != 0 {
		buf = append(buf, ' ')
	}
	binary.LittleEndian.PutUint64(buf, uint64(len(buf)-8))
	return buf, nil
}

// byteSize is the number of bytes a tensor of that type and shape takes.
func byteSize(dtype DType, shape []int) (int64, error) {
	size := int64(dtype.Size())
	if size == 0 {
		return 0, fmt.Errorf("element type %q is not supported", dtype)
	}
	for _, dim := range shape {
		if dim < 0 {
			return 0, fmt.Errorf("shape %v has a negative dimension", shape)
		}
		if dim > 0 && size > math.MaxInt64/int64(dim) {
			return 0, fmt.Errorf("shape %v is too large", shape)
		}
		size *= int64(dim)
	}
	return size, nil
}

// littleEndian says whether this machine's memory layout is the file's.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// writeElements writes s as little-endian bytes: on little-endian machines
// straight from its memory, elsewhere in converted pieces.
func writeElements[T Element](w io.Writer, s []T) error {
	if len(s) == 0 {
		return nil
	}
	if littleEndian {
		size := int(unsafe.Sizeof(s[0]))
		_, err := w.Write(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*size))
		return err
	}
	const piece = 4096
	for len(s) > 0 {
		n := min(piece, len(s))
		if err := binary.Write(w, binary.LittleEndian, s[:n]); err != nil {
			return err
		}
		s = s[n:]
	}
	return nil
}

type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// appendString appends s as a JSON string.
func appendString(buf []byte, s string) []byte {
	quoted, err := json.Marshal(s)
	if err != nil { // a string always encodes
		return append(buf, `""`...)
	}
	return append(buf, quoted...)
}
