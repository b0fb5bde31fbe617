package image

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
)

// QEMU is an emulator that runs on the host.
type QEMU struct {
	Program string
	// Args are the first arguments: the paths of the emulator's data.
	Args []string
	// Version is the output of --version.
	Version string
}

const emulator = "qemu-system-x86_64"

// Emulator returns the QEMU of a source: the installed one, or that of the
// backports, which runs with the installed one's libraries.
func (s *Store) Emulator(ctx context.Context, source Source) (QEMU, error) {
	installed, err := exec.LookPath(emulator)
	if err != nil {
		return QEMU{}, fmt.Errorf("guests need QEMU: install the Debian package qemu-system-x86 (scripts/need vm does): %w", err)
	}
	q := QEMU{Program: installed}
	if source == Backports {
		if q, err = s.backportsQEMU(ctx); err != nil {
			return QEMU{}, fmt.Errorf("find the QEMU of %s: %w", source, err)
		}
	}
	q.Version, err = output(exec.CommandContext(ctx, q.Program, "--version"))
	if err != nil {
		return QEMU{}, fmt.Errorf("run the QEMU of %s: %w", source, err)
	}
	return q, nil
}

func (s *Store) backportsQEMU(ctx context.Context) (QEMU, error) {
	var q QEMU
	err := s.locked(ctx, func() error {
		p, err := s.plan(ctx)
		if err != nil {
			return err
		}
		if missing := p.Missing[Backports]; missing != "" {
			return fmt.Errorf("%w: %s", ErrNoSource, missing)
		}
		if len(p.Emulator) != len(emulatorPackages()) {
			return errors.New("the QEMU packages of the backports are incomplete")
		}
		root, err := s.unpack(ctx, Backports, "qemu", p.Emulator, nil)
		if err != nil {
			return err
		}
		q.Program = filepath.Join(root, "usr/bin", emulator)
		for _, dir := range []string{filepath.Join(root, "usr/share/qemu"), filepath.Join(root, "usr/share/seabios"), "/usr/share/qemu", "/usr/lib/ipxe/qemu", "/usr/share/seabios"} {
			q.Args = append(q.Args, "-L", dir)
		}
		return nil
	})
	return q, err
}
