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

// maxSecret bounds a file with a secret, in bytes.
const maxSecret = 64 << 10

// SecretFiles makes a check of a call's secrets: each key must be there with
// the content of its file, without the line end. The files are read at each
// call, so that a secret may be renewed without a restart. Other keys are not
// looked at. Errors: Unauthenticated, and Unavailable when a file cannot be
// read; no value is in any of them.
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
				return errs.Errorf(errs.Unavailable, "the secret %q cannot be checked: %w", key, err)
			}
			got := sha256.Sum256([]byte(secrets[key]))
			right = subtle.ConstantTimeCompare(got[:], want[:]) == 1 && right
		}
		if !right {
			return errs.Errorf(errs.Unauthenticated, "the secrets of the call are missing or wrong; %q are needed", keys)
		}
		return nil
	}
}

// readSecret returns a digest, so that comparing tells nothing of the length.
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
