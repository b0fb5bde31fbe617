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

type cephKey struct {
	user   string // without "client."
	secret []byte // in the format of the kernel's struct ceph_crypto_key
}

// readKey reads a key file. Precondition: the file does not exist, other users
// can read it, or it holds no key. Errors never contain the key.
func readKey(dir, name, user string) (cephKey, error) {
	path := filepath.Join(dir, name)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return cephKey{}, errs.Errorf(errs.Precondition, "key directory: %w", err)
	}
	defer root.Close()
	// Symbolic links within the directory are followed: kubelet mounts Secrets
	// so.
	info, err := root.Stat(name)
	if err != nil {
		return cephKey{}, errs.Errorf(errs.Precondition, "Ceph key %s: %w", name, err)
	}
	owner := info.Sys().(*syscall.Stat_t).Uid
	switch {
	case !info.Mode().IsRegular():
		return cephKey{}, errs.Errorf(errs.Precondition, "Ceph key %s is not a regular file: %v", path, info.Mode())
	case info.Mode().Perm()&0o077 != 0:
		return cephKey{}, errs.Errorf(errs.Precondition, "Ceph key %s has mode %04o: only its owner can be allowed to access it (use mode 0600, or defaultMode 0400 of a Secret)", path, info.Mode().Perm())
	case owner != 0 && owner != uint32(os.Geteuid()):
		return cephKey{}, errs.Errorf(errs.Precondition, "Ceph key %s is owned by user %d: the owner must be root", path, owner)
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

func readBounded(root *os.Root, name string) (string, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a pipe must not block
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

// parseKey parses a plain key, or the key of user in a keyring; user is
// optional if there is only one.
func parseKey(text, user string) (cephKey, error) {
	if !strings.Contains(text, "[") {
		// The base64 padding of a plain key can contain "=".
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
		return cephKey{}, fmt.Errorf("the keyring has %d users: set cephUser", len(keys))
	case !found:
		return cephKey{}, fmt.Errorf("the keyring has no key for client.%s", user)
	}
	secret, err := decodeKey(value)
	return cephKey{user, secret}, err
}

// decodeKey checks the format of the kernel's ceph_crypto_key_decode, little
// endian: type (1 is AES), creation time, length, key.
func decodeKey(text string) ([]byte, error) {
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	const head = 2 + 8 + 2
	if err != nil || len(b) <= head || int(b[10])|int(b[11])<<8 != len(b)-head {
		return nil, errors.New("not a Ceph key in the format of `ceph auth get-key`")
	}
	return b, nil
}

// intoKeyring adds the key to the process keyring, which only this thread and
// its kernel calls can read, until remove or the end of the thread.
func (k cephKey) intoKeyring(description string) (remove func(), err error) {
	id, err := unix.AddKey("ceph", description, k.secret, unix.KEY_SPEC_PROCESS_KEYRING)
	switch {
	case errors.Is(err, unix.EINVAL) && k.secret[0] != 1:
		return nil, errs.Errorf(errs.Precondition, "this kernel refuses the key of client.%s, whose type is %d (1 is aes, 2 is aes256k, which Linux 7.0 and later can use): use a key of type aes (`ceph auth get-or-create … --key_type aes`), or a newer kernel (%w)", k.user, k.secret[0], err)
	case err != nil:
		return nil, fmt.Errorf("add the Ceph key to the kernel keyring: %w", err)
	}
	return func() {
		_, _ = unix.KeyctlInt(unix.KEYCTL_UNLINK, id, unix.KEY_SPEC_PROCESS_KEYRING, 0, 0)
	}, nil
}
