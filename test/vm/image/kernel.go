package image

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// kernel returns the unpacked packages of a kernel, with depmod's tables and an
// uncompressed boot/vmlinux. The caller holds the lock.
func (s *Store) kernel(ctx context.Context, source Source, packages []Package) (root, release string, err error) {
	root, err = s.unpack(ctx, source, "kernel", packages, func(root string) error {
		if err := os.Symlink("usr/lib", filepath.Join(root, "lib")); err != nil && !errors.Is(err, os.ErrExist) { // merged /usr, since 7.2
			return err
		}
		release, err := kernelRelease(root)
		if err != nil {
			return err
		}
		if err := depmod(ctx, root, release); err != nil {
			return err
		}
		return errors.Join(os.MkdirAll(filepath.Join(root, "boot"), 0o755),
			unpackKernel(ctx, bootFile(root, release, "vmlinuz"), filepath.Join(root, "boot", "vmlinux")))
	})
	if err != nil {
		return "", "", err
	}
	release, err = kernelRelease(root)
	return root, release, err
}

// bootFile returns the path of a kernel's file, which since 7.2 is not in /boot.
func bootFile(root, release, name string) string {
	file := filepath.Join(root, "boot", name+"-"+release)
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		return filepath.Join(root, "lib", "modules", release, name)
	}
	return file
}

func kernelRelease(root string) (string, error) {
	found, err := filepath.Glob(filepath.Join(root, "lib", "modules", "*"))
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("the kernel package has modules of %d releases, want 1", len(found))
	}
	if err != nil {
		return "", err
	}
	return filepath.Base(found[0]), nil
}

// unpackKernel extracts vmlinux, because decompression takes seconds on an
// emulated processor.
func unpackKernel(ctx context.Context, from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	packed, size, err := payload(data)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	tool, err := unpacker(packed)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	cmd := exec.CommandContext(ctx, tool[0], tool[1:]...)
	cmd.Stdin = bytes.NewReader(packed)
	vmlinux, err := output(cmd)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	if len(vmlinux) != int(size) {
		return fmt.Errorf("%s: unpacked to %d bytes, want %d", from, len(vmlinux), size)
	}
	return os.WriteFile(to, []byte(vmlinux), 0o644)
}

// payload finds the compressed kernel in a bzImage and its uncompressed size,
// the last four bytes of the payload (Documentation/arch/x86/boot.rst:
// setup_sects, HdrS, payload_offset, payload_length).
func payload(image []byte) (packed []byte, size uint32, err error) {
	const (
		setupSects, magic, offset, length = 0x1f1, 0x202, 0x248, 0x24c
		end                               = 0x250
	)
	if len(image) < end || string(image[magic:magic+4]) != "HdrS" {
		return nil, 0, errors.New("not a Linux kernel: no boot header")
	}
	start := (int64(image[setupSects])+1)*512 + int64(binary.LittleEndian.Uint32(image[offset:]))
	n := int64(binary.LittleEndian.Uint32(image[length:]))
	if n < 4 || start+n > int64(len(image)) {
		return nil, 0, fmt.Errorf("the boot header has payload offset %d and length %d in a file of %d bytes", start, n, len(image))
	}
	packed = image[start : start+n]
	return packed[:n-4], binary.LittleEndian.Uint32(packed[n-4:]), nil
}

// unpacker returns the command that decompresses data. Debian's kernels use xz
// up to 6.1, and zstd later.
func unpacker(data []byte) ([]string, error) {
	switch {
	case bytes.HasPrefix(data, []byte("\xfd7zXZ\x00")):
		return []string{"xz", "--decompress", "--stdout", "--single-stream"}, nil
	case bytes.HasPrefix(data, []byte("\x28\xb5\x2f\xfd")):
		return []string{"zstd", "--decompress", "--stdout"}, nil
	}
	return nil, fmt.Errorf("the kernel is compressed neither with xz nor with zstd: magic % x", data[:min(6, len(data))])
}
