// Package keyring stores keys in keyrings of the kernel
// (Documentation/security/keys/core.rst of the kernel). Only root can use it for
// keyrings of the kernel itself.
package keyring

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

// Keyring is a keyring of the kernel, by its serial number.
type Keyring int

// Find returns the keyring with a name. NotFound: the kernel has none that this
// process can see.
func Find(name string) (Keyring, error) {
	text, err := os.ReadFile("/proc/keys")
	if err != nil {
		return 0, fmt.Errorf("find the keyring %s: %w", name, err)
	}
	return find(string(text), name)
}

// find parses lines such as "1d4c4e5f I------     1 perm 1f0f0000     0     0
// keyring   .nvme: empty".
func find(keys, name string) (Keyring, error) {
	for line := range strings.Lines(keys) {
		fields := strings.Fields(line)
		if len(fields) < 9 || fields[7] != "keyring" || fields[8] != name+":" {
			continue
		}
		serial, err := strconv.ParseInt(fields[0], 16, 32)
		if err != nil {
			return 0, fmt.Errorf("/proc/keys: serial number of the keyring %s: %w", name, err)
		}
		return Keyring(serial), nil
	}
	return 0, errs.Errorf(errs.NotFound, "the kernel has no keyring %s", name)
}

// permissions let every process of the key's owner use a key that is not in a
// keyring of the process, also after another has replaced it in its keyring.
const permissions = possessor | view<<owner | read<<owner | search<<owner

// Bits of linux/key.h.
const (
	view      = 0x01
	read      = 0x02
	search    = 0x08
	owner     = 16
	possessor = 0x3f << 24
)

// Put returns the serial number of a key with this type, description and
// payload. It replaces a key with another payload; programs that have its serial
// number can go on using that one.
func (r Keyring) Put(keyType, description string, payload []byte) (serial int, err error) {
	err = r.possess(func() error {
		serial, err = r.lookup(keyType, description)
		if err == nil {
			var present []byte
			if present, err = readAll(serial); err == nil && bytes.Equal(present, payload) {
				return nil
			}
		}
		if err != nil && errs.KindOf(err) != errs.NotFound {
			return err
		}
		if serial, err = unix.AddKey(keyType, description, payload, int(r)); err != nil {
			return err
		}
		if err := unix.KeyctlSetperm(serial, permissions); err != nil {
			_, unlinkErr := unix.KeyctlInt(unix.KEYCTL_UNLINK, serial, int(r), 0, 0)
			return errors.Join(err, unlinkErr)
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("store the key %s in the kernel: %w", errs.Quote(description), err)
	}
	return serial, nil
}

// Remove removes a key from the keyring. A missing key is no error.
func (r Keyring) Remove(keyType, description string) error {
	serial, err := r.lookup(keyType, description)
	if errs.KindOf(err) == errs.NotFound {
		return nil
	}
	if err == nil {
		_, err = unix.KeyctlInt(unix.KEYCTL_UNLINK, serial, int(r), 0, 0)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove the key %s from the kernel: %w", errs.Quote(description), err)
	}
	return nil
}

// possess links the keyring to one of this thread: a process can read and change
// keys that it possesses only.
func (r Keyring) possess(fn func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if _, err := unix.KeyctlInt(unix.KEYCTL_LINK, int(r), unix.KEY_SPEC_THREAD_KEYRING, 0, 0); err != nil {
		return err
	}
	err := fn()
	_, unlinkErr := unix.KeyctlInt(unix.KEYCTL_UNLINK, int(r), unix.KEY_SPEC_THREAD_KEYRING, 0, 0)
	return errors.Join(err, unlinkErr)
}

// lookup compares whole descriptions: the kernel's own search for keys of NVMe
// compares prefixes.
func (r Keyring) lookup(keyType, description string) (int, error) {
	data, err := readAll(int(r))
	if err != nil {
		return 0, err
	}
	for ; len(data) >= 4; data = data[4:] {
		serial := int(int32(binary.NativeEndian.Uint32(data)))
		text, err := unix.KeyctlString(unix.KEYCTL_DESCRIBE, serial)
		if err != nil {
			continue // removed meanwhile, or another user's
		}
		// type;uid;gid;permissions;description
		if fields := strings.SplitN(text, ";", 5); len(fields) == 5 && fields[0] == keyType && fields[4] == description {
			return serial, nil
		}
	}
	return 0, errs.Errorf(errs.NotFound, "no key %s", errs.Quote(description))
}

// readAll returns the payload of a key, or the serial numbers of a keyring.
func readAll(serial int) ([]byte, error) {
	for data := make([]byte, 1024); ; {
		n, err := unix.KeyctlBuffer(unix.KEYCTL_READ, serial, data, 0)
		if err != nil {
			return nil, err
		}
		if n <= len(data) {
			return data[:n], nil
		}
		data = make([]byte, n)
	}
}
