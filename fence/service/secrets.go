package service

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/cleatproject/cleat/errs"
)

// maxSecret is in bytes.
const maxSecret = 64 << 10

// SecretFiles returns a check: each key of the secrets must have its file's
// content, without the line end. Files are read for each call, to rotate
// secrets without a restart. Other keys are ignored. Errors, without values:
// Unauthenticated, or Unavailable for an unreadable file.
func SecretFiles(files map[string]string) func(secrets map[string]string) error {
	if len(files) == 0 {
		return nil
	}
	keys := slices.Sorted(maps.Keys(files))
	return func(secrets map[string]string) error {
		right := true
		for _, key := range keys {
			want, err := readSecret(files[key])
			if err != nil {
				return errs.Errorf(errs.Unavailable, "check the secret %q: %w", key, err)
			}
			got := sha256.Sum256([]byte(secrets[key]))
			right = subtle.ConstantTimeCompare(got[:], want[:]) == 1 && right
		}
		if !right {
			return errs.Errorf(errs.Unauthenticated, "secrets are missing or wrong; the call needs the keys %q", keys)
		}
		return nil
	}
}

// Comparing digests does not leak the length.
func readSecret(path string) ([sha256.Size]byte, error) {
	var none [sha256.Size]byte
	f, err := os.Open(path)
	if err != nil {
		return none, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	text = bytes.TrimRight(text, "\r\n")
	switch {
	case err != nil:
		return none, err
	case len(text) == 0:
		return none, fmt.Errorf("%s is empty", path)
	case len(text) > maxSecret:
		return none, fmt.Errorf("%s has more than %d bytes", path, maxSecret)
	}
	return sha256.Sum256(text), nil
}
