//go:build ceph

package ceph

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/ceph/go-ceph/rados"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
)

type state struct {
	generation uint64
	entries    map[string][]byte
}

// ReadState returns the controller's state, of one moment. Generation 0: it was
// never written.
func (c *Connection) ReadState(ctx context.Context) (generation uint64, entries map[string][]byte, err error) {
	s, err := call(ctx, c, "read the recorded state", func() (state, error) {
		for ctx.Err() == nil {
			s, err := c.readState(ctx)
			if !errors.Is(err, store.ErrChanged) {
				return s, explain(err, "read object %s in pool %s", stateObject, c.pools[0].name)
			}
		}
		return state{}, ctx.Err()
	})
	return s.generation, s.entries, err
}

// pageSize is the most that an OSD returns of an omap at once, by default.
const pageSize = 1024

// readState reads in pages; store.ErrChanged: the state changed between two pages.
func (c *Connection) readState(ctx context.Context) (state, error) {
	s := state{entries: map[string][]byte{}}
	for after, more := "", true; more && ctx.Err() == nil; {
		first := after == ""
		var page state
		var err error
		if page, after, more, err = c.readPage(after); err != nil {
			return state{}, err
		}
		if !first && page.generation != s.generation {
			return state{}, store.ErrChanged
		}
		s.generation = page.generation
		for key, value := range page.entries {
			s.entries[key] = value
		}
	}
	return s, nil
}

func (c *Connection) readPage(after string) (page state, last string, more bool, err error) {
	read := rados.CreateReadOp()
	defer read.Release()
	generation := make([]byte, 8)
	step := read.Read(0, generation)
	omap := read.GetOmapValues(after, "", pageSize)
	err = read.Operate(c.pools[0].io, stateObject, rados.OperationNoFlag)
	switch {
	case is(err, unix.ENOENT):
		return state{}, "", false, nil
	case err != nil:
		return state{}, "", false, err
	case step.BytesRead != int64(len(generation)):
		return state{}, "", false, errs.Errorf(errs.Internal, "the object has %d bytes instead of a generation of 8; it was not written by this program", step.BytesRead)
	}
	page = state{generation: binary.LittleEndian.Uint64(generation), entries: map[string][]byte{}}
	for {
		pair, err := omap.Next()
		if err != nil {
			return state{}, "", false, err
		}
		if pair == nil {
			return page, last, omap.More(), nil
		}
		page.entries[pair.Key], last = pair.Value, pair.Key
	}
}

// WriteState changes entries of the controller's state in one step, and its
// generation to expect+1. store.ErrChanged: the generation is not expect. After
// Unavailable the change can be applied or not: read the state again.
func (c *Connection) WriteState(ctx context.Context, expect uint64, set map[string][]byte, remove []string) error {
	_, err := call(ctx, c, "write the recorded state", func() (struct{}, error) {
		err := c.writeState(expect, set, remove)
		if errors.Is(err, store.ErrChanged) {
			return struct{}{}, fmt.Errorf("generation %d: %w", expect, err)
		}
		return struct{}{}, explain(err, "write object %s in pool %s", stateObject, c.pools[0].name)
	})
	return err
}

func (c *Connection) writeState(expect uint64, set map[string][]byte, remove []string) error {
	write := rados.CreateWriteOp()
	defer write.Release()
	if expect == 0 {
		write.Create(rados.CreateExclusive)
	} else {
		write.CmpExt(binary.LittleEndian.AppendUint64(nil, expect), 0)
	}
	write.Write(binary.LittleEndian.AppendUint64(nil, expect+1), 0)
	if len(set) > 0 {
		write.SetOmap(set)
	}
	if len(remove) > 0 {
		write.RmOmapKeys(remove)
	}
	err := write.Operate(c.pools[0].io, stateObject, rados.OperationNoFlag)
	if is(err, unix.EEXIST, unix.ENOENT) {
		return store.ErrChanged
	}
	if number, ok := plain(err).(unix.Errno); ok && number >= mismatch {
		return store.ErrChanged
	}
	return err
}

// mismatch is the error number of CmpExt for a difference in the first byte;
// for byte n it is higher by n (MAX_ERRNO in librados.h).
const mismatch = 4095
