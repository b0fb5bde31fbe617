package enginetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/cleatproject/cleat/volume"
)

const sparseBlock = 4096

// sparse is the content by block number. Blocks are replaced, never modified,
// so a clone of the map is a copy.
type sparse map[int64][]byte

func (s sparse) readAt(p []byte, offset int64) {
	for len(p) > 0 {
		number, start := offset/sparseBlock, offset%sparseBlock
		n := min(len(p), int(sparseBlock-start))
		clear(p[:n])
		if block := s[number]; block != nil {
			copy(p[:n], block[start:])
		}
		p, offset = p[n:], offset+int64(n)
	}
}

func (s sparse) writeAt(p []byte, offset int64) {
	for len(p) > 0 {
		number, start := offset/sparseBlock, offset%sparseBlock
		block := make([]byte, sparseBlock)
		copy(block, s[number])
		n := copy(block[start:], p)
		s[number] = block
		p, offset = p[n:], offset+int64(n)
	}
}

func (s sparse) differs(other sparse) (numbers []int64) {
	zero := make([]byte, sparseBlock)
	orZero := func(b []byte) []byte {
		if b == nil {
			return zero
		}
		return b
	}
	for number, block := range s {
		if !bytes.Equal(block, orZero(other[number])) {
			numbers = append(numbers, number)
		}
	}
	for number, block := range other {
		if s[number] == nil && !bytes.Equal(block, zero) {
			numbers = append(numbers, number)
		}
	}
	return slices.Clip(numbers)
}

// Open opens a volume; the device fails after the volume is deleted.
func (r *Reference) Open(id volume.ID) (Device, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.volume(id); err != nil {
		return nil, err
	}
	return &referenceDevice{engine: r, id: id}, nil
}

// OpenSnapshot opens a snapshot for reading.
func (r *Reference) OpenSnapshot(id volume.SnapshotID) (io.ReaderAt, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, err := r.snapshot(id)
	if err != nil {
		return nil, err
	}
	return readerAt{bytes: s.bytes, size: s.Size}, nil
}

// Hold makes Delete fail until release is called.
func (r *Reference) Hold(id volume.ID) (release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, err := r.volume(id)
	if err != nil {
		return nil, err
	}
	v.holds++
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		v.holds--
	}, nil
}

// Report sets the result of VolumeHealth or, with an empty id, of
// StorageHealth.
func (r *Reference) Report(id volume.ID, conditions ...volume.Condition) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if id == "" {
		r.storage = conditions
		return nil
	}
	v, err := r.volume(id)
	if err != nil {
		return err
	}
	v.conditions = conditions
	return nil
}

// VolumeHealth implements volume.Health.
func (r *Reference) VolumeHealth(ctx context.Context, id volume.ID) ([]volume.Condition, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	v, err := r.volume(id)
	if err != nil {
		return nil, err
	}
	return slices.Clone(v.conditions), nil
}

// StorageHealth implements volume.Health.
func (r *Reference) StorageHealth(ctx context.Context) ([]volume.Condition, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.storage), nil
}

type referenceDevice struct {
	engine *Reference
	id     volume.ID
}

func (d *referenceDevice) ReadAt(p []byte, offset int64) (n int, err error) {
	err = d.with(func(v *referenceVolume) error {
		n, err = readerAt{bytes: v.bytes, size: v.Size}.ReadAt(p, offset)
		return err
	})
	return n, err
}

func (d *referenceDevice) WriteAt(p []byte, offset int64) (int, error) {
	err := d.with(func(v *referenceVolume) error {
		if offset < 0 || offset+int64(len(p)) > v.Size {
			return fmt.Errorf("%d bytes at %d do not fit a volume of %d bytes", len(p), offset, v.Size)
		}
		v.bytes.writeAt(p, offset)
		return nil
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

func (d *referenceDevice) Size() (size int64, err error) {
	err = d.with(func(v *referenceVolume) error { size = v.Size; return nil })
	return size, err
}

func (d *referenceDevice) Sync() error { return nil }

func (d *referenceDevice) Close() error { return nil }

func (d *referenceDevice) with(do func(*referenceVolume) error) error {
	d.engine.mu.Lock()
	defer d.engine.mu.Unlock()
	v, err := d.engine.volume(d.id)
	if err != nil {
		return err
	}
	return do(v)
}

type readerAt struct {
	bytes sparse
	size  int64
}

func (r readerAt) ReadAt(p []byte, offset int64) (int, error) {
	if offset < 0 {
		return 0, errors.New("negative offset")
	}
	n := max(0, min(int64(len(p)), r.size-offset))
	r.bytes.readAt(p[:n], offset)
	if n < int64(len(p)) {
		return int(n), io.EOF
	}
	return int(n), nil
}
