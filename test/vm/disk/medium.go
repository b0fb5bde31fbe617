package disk

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/flock"
)

// medium is the durable part of the disk: a sparse file on the host, whose page
// cache outlives QEMU and this process.
type medium struct {
	file *os.File
}

// openMedium opens or creates the backing file and locks it.
func openMedium(path string, size int64) (*medium, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := prepare(f, size); err != nil {
		return nil, errors.Join(fmt.Errorf("backing file %s: %w", path, err), f.Close())
	}
	return &medium{file: f}, nil
}

func prepare(f *os.File, size int64) error {
	if err := flock.Try(f); err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	switch {
	case !info.Mode().IsRegular():
		return errors.New("not a regular file")
	case info.Size() == 0:
		return f.Truncate(size)
	case info.Size() != size:
		return fmt.Errorf("file has %d bytes, want %d", info.Size(), size)
	}
	return nil
}

func (m *medium) read(buf []byte, off int64) error {
	_, err := m.file.ReadAt(buf, off)
	return err
}

// punch punches a hole, which reads as zeroes.
func (m *medium) punch(off, length int64) error {
	raw, err := m.file.SyscallConn()
	if err != nil {
		return err
	}
	var punched error
	err = raw.Control(func(fd uintptr) {
		for {
			punched = unix.Fallocate(int(fd), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, length)
			if punched != unix.EINTR {
				return
			}
		}
	})
	if err = errors.Join(err, punched); err != nil {
		return fmt.Errorf("punch a hole of %d bytes at %d: %w", length, off, err)
	}
	return nil
}

// maxStrip is the maximum size of a strip in bytes.
const maxStrip = 1 << 20

// strip collects contiguous blocks and writes them with one call. The data is
// on the medium only after end.
type strip struct {
	medium *medium
	at     int64
	length int64
	data   []byte // nil for a strip of zeroes
	blocks int64  // written so far
}

// add appends a block of length bytes at off; nil data is zeroes.
func (s *strip) add(off, length int64, data []byte) error {
	if s.length > 0 && (off != s.at+s.length || (data == nil) != (s.data == nil) || len(s.data) >= maxStrip) {
		if err := s.end(); err != nil {
			return err
		}
	}
	if s.length == 0 {
		s.at = off
	}
	s.length += length
	s.data = append(s.data, data...)
	s.blocks++
	return nil
}

// end writes the collected blocks.
func (s *strip) end() error {
	length, data := s.length, s.data
	s.length, s.data = 0, nil
	switch {
	case length == 0:
		return nil
	case data == nil:
		return s.medium.punch(s.at, length)
	}
	_, err := s.medium.file.WriteAt(data, s.at)
	return err
}
