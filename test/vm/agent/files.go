package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/cleatproject/cleat/test/vm/wire"
)

// push writes the file that follows the request.
func (s *session) push(p wire.Push) (err error) {
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
	if n, err := io.CopyN(f, s.in, p.Size); err != nil {
		return fmt.Errorf("%d of %d bytes of %s came: %w", n, p.Size, p.Path, err)
	}
	if err := f.Chmod(os.FileMode(p.Mode)); err != nil {
		return err
	}
	return os.Rename(f.Name(), p.Path)
}

// pull sends a file of a known size.
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
		fmt.Println("agent: pull:", err) // the host sees too few bytes
	}
}
