package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/cleatproject/cleat/test/vm/wire"
)

// push receives a file. It reads all its bytes even if writing fails: unread
// bytes would reset the connection and lose the reply.
func (s *session) push(p wire.Push) error {
	file := &io.LimitedReader{R: s.in, N: p.Size}
	err := write(file, p)
	if _, drained := io.Copy(io.Discard, file); drained != nil {
		err = errors.Join(err, drained)
	}
	return err
}

func write(from *io.LimitedReader, p wire.Push) (err error) {
	dir := filepath.Dir(p.Path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".push-*")
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	if n, err := io.Copy(f, from); err != nil {
		return fmt.Errorf("%d of %d bytes of %s: %w", n, p.Size, p.Path, err)
	}
	if from.N > 0 {
		return fmt.Errorf("%s: %d of %d bytes are missing", p.Path, from.N, p.Size)
	}
	if err := f.Chmod(os.FileMode(p.Mode)); err != nil {
		return err
	}
	return os.Rename(f.Name(), p.Path)
}

// pull sends a regular file, preceded by its size.
func (s *session) pull(p wire.Pull) {
	f, err := os.Open(p.Path)
	if err != nil {
		s.reply(wire.Reply{}, err)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", p.Path)
	}
	if err != nil {
		s.reply(wire.Reply{}, err)
		return
	}
	s.reply(wire.Reply{Size: info.Size()}, nil)
	if _, err := io.CopyN(s, f, info.Size()); err != nil {
		fmt.Println("agent: pull:", err) // the host sees a short file
	}
}
