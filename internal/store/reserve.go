package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

type reserve struct {
	path string
	step int64 // 0: disabled
	end  int64 // of the preallocated space
}

// newReserve preallocates for an existing store. A full file system is not an
// error: the store must open for deletes.
func newReserve(path string, step int64) (reserve, error) {
	info, err := os.Stat(path)
	if err != nil {
		return reserve{}, err
	}
	r := reserve{path: path, step: step, end: max(info.Size(), step)}
	if step == 0 {
		return r, nil
	}
	if err := r.set(0, r.end); err != nil && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return reserve{}, fmt.Errorf("preallocate %d bytes: %w", step, err)
	}
	return r, nil
}

// follow preallocates more space near the end. A failure is not fatal: the next
// commit retries.
func (r *reserve) follow(used int64) error {
	if r.step == 0 || used < r.end-r.step/4 {
		return nil
	}
	err := r.set(r.end, r.step)
	if err == nil {
		r.end += r.step
	}
	return err
}

func (r *reserve) set(from, length int64) error {
	f, err := os.OpenFile(r.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(allocate(f, from, length), f.Close())
}

// allocate keeps the file's size, which the database manages.
func allocate(f *os.File, from, length int64) error {
	if length == 0 {
		return nil
	}
	for {
		switch err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, from, length); err {
		case nil, unix.EOPNOTSUPP:
			return nil
		case unix.EINTR:
		default:
			return &fs.PathError{Op: "fallocate", Path: f.Name(), Err: err}
		}
	}
}
