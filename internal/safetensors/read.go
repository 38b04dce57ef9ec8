package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"unsafe"
)

// ErrFormat is wrapped by every error about a file's content.
var ErrFormat = errors.New("not a valid safetensors file")

const (
	metadataKey = "__metadata__"
	// maxHeader bounds what a damaged length can make us read; the reference
	// implementation has the same limit.
	maxHeader = 100_000_000
)

// Info describes one tensor of a file.
type Info struct {
	Name  string
	DType DType
	Shape []int

	begin, end int64
}

// File is a parsed file, held in memory.
type File struct {
	// Metadata is the header's "__metadata__", nil when it has none.
	Metadata map[string]string
	// Tensors lists the tensors in the order of their data.
	Tensors []Info

	data []byte
}

// ReadFile reads and parses the file at path.
func ReadFile(path string) (*File, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// Parse checks data and returns a File that refers to it.
func Parse(data []byte) (*File, error) {
	if len(data) < 8 {
		return nil, fmt.Errorf("%w: it has only %d bytes", ErrFormat, len(data))
	}
	length := binary.LittleEndian.Uint64(data)
	if length > maxHeader || length > uint64(len(data)-8) {
		return nil, fmt.Errorf("%w: its header length %d does not fit", ErrFormat, length)
	}
	f := &File{data: data[8+length:]}
	if err := f.parseHeader(data[8 : 8+length]); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if err := f.checkLayout(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return f, nil
}

// parseHeader reads the header as a stream of tokens, because decoding into a
// map would silently accept a name that occurs twice.
func (f *File) parseHeader(header []byte) error {
	if len(header) == 0 || header[0] != '{' {
		return errors.New("its header is no JSON object")
	}
	dec := json.NewDecoder(bytes.NewReader(header))
	dec.DisallowUnknownFields()
	if _, err := dec.Token(); err != nil {
		return err
	}
	seen := map[string]bool{}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return err
		}
		name, ok := token.(string)
		if !ok || seen[name] {
			return fmt.Errorf("the name %v occurs twice", token)
		}
		seen[name] = true
		if name == metadataKey {
			if err := dec.Decode(&f.Metadata); err != nil {
				return fmt.Errorf("metadata: %w", err)
			}
			continue
		}
		var entry struct {
			DType   DType   `json:"dtype"`
			Shape   []int   `json:"shape"`
			Offsets []int64 `json:"data_offsets"`
		}
		if err := dec.Decode(&entry); err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		if len(entry.Offsets) != 2 {
			return fmt.Errorf("tensor %q has no pair of offsets", name)
		}
		f.Tensors = append(f.Tensors, Info{
			Name: name, DType: entry.DType, Shape: entry.Shape,
			begin: entry.Offsets[0], end: entry.Offsets[1],
		})
	}
	if _, err := dec.Token(); err != nil {
		return err
	}
	if rest := bytes.TrimRight(header[dec.InputOffset():], " "); len(rest) > 0 {
		return errors.New("text follows the header's object")
	}
	return nil
}

// checkLayout sorts the tensors by offset and requires that they tile the data.
func (f *File) checkLayout() error {
	slices.SortStableFunc(f.Tensors, func(a, b Info) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end))
	})
	var at int64
	for _, t := range f.Tensors {
		size, err := byteSize(t.DType, t.Shape)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		if t.begin != at || t.end < t.begin {
			return fmt.Errorf("tensor %q spans [%d, %d] where %d is the next free byte", t.Name, t.begin, t.end, at)
		}
		if t.end-t.begin != size {
			return fmt.Errorf("tensor %q has %d bytes where its shape needs %d", t.Name, t.end-t.begin, size)
		}
		at = t.end
	}
	if at != int64(len(f.data)) {
		return fmt.Errorf("its tensors take %d bytes of %d", at, len(f.data))
	}
	return nil
}

// Info finds a tensor by name.
func (f *File) Info(name string) (Info, bool) {
	i := slices.IndexFunc(f.Tensors, func(t Info) bool { return t.Name == name })
	if i < 0 {
		return Info{}, false
	}
	return f.Tensors[i], true
}

// Values returns a copy of a tensor's elements. It fails when the file has no
// such tensor or holds it in another element type.
func Values[T Element](f *File, name string) ([]T, error) {
	t, ok := f.Info(name)
	if !ok {
		return nil, fmt.Errorf("there is no tensor %q", name)
	}
	if want := dtypeOf[T](); t.DType != want {
		return nil, fmt.Errorf("tensor %q is %s where %s is needed", name, t.DType, want)
	}
	raw := f.data[t.begin:t.end]
	values := make([]T, len(raw)/t.DType.Size())
	if len(values) == 0 {
		return values, nil
	}
	if littleEndian {
		copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), len(raw)), raw)
		return values, nil
	}
	return values, binary.Read(bytes.NewReader(raw), binary.LittleEndian, values)
}
