package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// maxGroupRecord bounds one group in a file, so that a damaged length does not
// ask for all memory.
const maxGroupRecord = 1 << 31

// byteStringHead is the head of a CBOR byte string with a 4-byte length.
const byteStringHead = 0x5a

// WriteGroups writes groups as a CBOR sequence (RFC 8742): one byte string per
// group, which holds its record.
func (c *Codec) WriteGroups(w io.Writer, groups []rollout.Group) error {
	var head [5]byte
	head[0] = byteStringHead
	for i := range groups {
		err := c.with(kindGroup, packGroup(&groups[i]), func(rec []byte) error {
			if len(rec) > maxGroupRecord {
				return fmt.Errorf("record of %d bytes is above %d", len(rec), maxGroupRecord)
			}
			binary.BigEndian.PutUint32(head[1:], uint32(len(rec)))
			if _, err := w.Write(head[:]); err != nil {
				return err
			}
			_, err := w.Write(rec)
			return err
		})
		if err != nil {
			return fmt.Errorf("write group %d: %w", groups[i].Index, err)
		}
	}
	return nil
}

// ReadGroups reads what WriteGroups wrote.
func (c *Codec) ReadGroups(r io.Reader) ([]rollout.Group, error) {
	br := bufio.NewReader(r)
	var groups []rollout.Group
	var head [5]byte
	for {
		_, err := io.ReadFull(br, head[:])
		if errors.Is(err, io.EOF) {
			return groups, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read group %d: %w: %w", len(groups), ErrFormat, err)
		}
		size := int64(binary.BigEndian.Uint32(head[1:]))
		if head[0] != byteStringHead || size > maxGroupRecord {
			return nil, fmt.Errorf("read group %d: %w: head % x", len(groups), ErrFormat, head)
		}
		rec, err := io.ReadAll(io.LimitReader(br, size))
		if err != nil || int64(len(rec)) != size {
			return nil, fmt.Errorf("read group %d: %w: %d of %d bytes", len(groups), ErrFormat, len(rec), size)
		}
		g, err := c.DecodeGroup(rec)
		if err != nil {
			return nil, fmt.Errorf("read group %d: %w", len(groups), err)
		}
		groups = append(groups, *g)
	}
}
