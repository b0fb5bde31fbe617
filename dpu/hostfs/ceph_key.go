package hostfs

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

// cephKey is a user's secret, and the user's name where the file says it.
type cephKey struct {
	user   string // without "client."
	secret []byte // as the kernel wants it: a struct ceph_crypto_key
}

// readKey reads a key's file. Precondition: it is not there, others may read it,
// or it holds no key. The errors do not quote it.
func readKey(dir, name, user string) (cephKey, error) {
	path := filepath.Join(dir, name)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return cephKey{}, errs.Errorf(errs.Precondition, "directory of keys: %w", err)
	}
	defer root.Close()
	// Links within the directory are followed: that is how secrets of Kubernetes
	// are laid out.
	info, err := root.Stat(name)
	if err != nil {
		return cephKey{}, errs.Errorf(errs.Precondition, "Ceph key %s: %w", name, err)
	}
	owner := info.Sys().(*syscall.Stat_t).Uid
	switch {
	case !info.Mode().IsRegular():
		return cephKey{}, errs.Errorf(errs.Precondition, "Ceph key %s is no file: %v", path, info.Mode())
	case info.Mode().Perm()&0o077 != 0:
		return cephKey{}, errs.Errorf(errs.Precondition, "Ceph key %s has mode %04o: nobody but its owner may have it (0600, or 0400 with defaultMode of a Secret)", path, info.Mode().Perm())
	case owner != 0 && owner != uint32(os.Geteuid()):
		return cephKey{}, errs.Errorf(errs.Precondition, "Ceph key %s belongs to user %d: it must be root's", path, owner)
	}
	text, err := readBounded(root, name)
	if err != nil {
		return cephKey{}, errs.Errorf(errs.Precondition, "Ceph key %s: %w", name, err)
	}
	k, err := parseKey(text, user)
	if err != nil {
		return cephKey{}, errs.Errorf(errs.Precondition, "Ceph key %s: %w", path, err)
	}
	return k, nil
}

// readBounded reads a small file.
func readBounded(root *os.Root, name string) (string, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe is not waited for
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConf+1))
	if err == nil && len(text) > maxConf {
		err = fmt.Errorf("%s is longer than %d bytes", name, maxConf)
	}
	return string(text), err
}

// parseKey reads a key alone, or that of a user (any, if there is one only) in
// a keyring file.
func parseKey(text, user string) (cephKey, error) {
	if !strings.Contains(text, "[") {
		// Without an "=" sign before it: base64 ends in some.
		if key, value, ok := strings.Cut(text, "="); ok && canonicalKey(key) == "key" {
			text = value
		}
		secret, err := decodeKey(text)
		return cephKey{user: user, secret: secret}, err
	}
	section, keys := "", map[string]string{}
	for _, line := range confLines(text) {
		if name, ok := strings.CutPrefix(line, "["); ok {
			section, _, _ = strings.Cut(name, "]")
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if name, isClient := strings.CutPrefix(section, "client."); ok && isClient && canonicalKey(key) == "key" {
			keys[name] = value
		}
	}
	if user == "" && len(keys) == 1 {
		for name := range keys {
			user = name
		}
	}
	value, found := keys[user]
	switch {
	case !found && user == "":
		return cephKey{}, fmt.Errorf("this keyring holds %d users: give one as cephUser", len(keys))
	case !found:
		return cephKey{}, fmt.Errorf("this keyring has no key of client.%s", user)
	}
	secret, err := decodeKey(value)
	return cephKey{user, secret}, err
}

// decodeKey checks what the kernel's ceph_crypto_key_decode will read: type
// (AES is 1), time of making, length, key, all in little endian.
func decodeKey(text string) ([]byte, error) {
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	const head = 2 + 8 + 2
	if err != nil || len(b) <= head || int(b[10])|int(b[11])<<8 != len(b)-head {
		return nil, errors.New("this is not a key of Ceph, as `ceph auth get-key` prints it")
	}
	return b, nil
}

// intoKeyring puts a key where the kernel finds it under the description, and
// nobody but this thread. It goes with remove, or with the thread.
func (k cephKey) intoKeyring(description string) (remove func(), err error) {
	id, err := unix.AddKey("ceph", description, k.secret, unix.KEY_SPEC_PROCESS_KEYRING)
	if err != nil {
		return nil, fmt.Errorf("put the Ceph key into the kernel's keyring: %w", err)
	}
	return func() {
		// The keyring of a process that ends goes by itself.
		_, _ = unix.KeyctlInt(unix.KEYCTL_UNLINK, id, unix.KEY_SPEC_PROCESS_KEYRING, 0, 0)
	}, nil
}
