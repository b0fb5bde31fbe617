package access

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
)

var (
	referencePattern = pattern(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
	// hex or base64 digits
	keyLike = pattern(`^[A-Za-z0-9+/]{32,}=*$`)
	// NVMe's interchange formats, and Ceph's AES-128 and AES-256 keys
	secretPattern = pattern(`(?i)DHHC-1:|NVMeTLSkey-1:|AQ[A-Za-z0-9+/]{36}==|Ag[A-Da-d][A-Za-z0-9+/]{56}=`)
)

// isReference: the value is the name of a secret key.
func isReference(key string) bool {
	return slices.Contains([]string{keyDHChap, keyDHChapCtrlr, keyTLS, keyCephKey}, key)
}

// isReferenceName includes aliases, case-insensitively.
func isReferenceName(name string) bool {
	return slices.ContainsFunc(dialects(), func(d dialect) bool {
		key, ok := d.canonical(name)
		return ok && isReference(key)
	})
}

// IsKeyName reports whether a value can be the name of a secret key.
func IsKeyName(value string) bool {
	return referencePattern().MatchString(value) && !keyLike().MatchString(value) && !LooksSecret(value)
}

// reference returns the name of a secret key. The secret itself is never sent
// in a context; an invalid name is not quoted, since it can be the secret.
func (f fields) reference(key string) (string, error) {
	name := f[key]
	if name == "" {
		return "", nil
	}
	if IsPath(name) {
		return "", fmt.Errorf("%s holds a path (not shown); give the name of a file in the key directory, without a slash", key)
	}
	if !IsKeyName(name) {
		return "", fmt.Errorf("%s is not the name of a key (its %d characters are not shown: they can be the key itself); give the name of a file in the key directory: at most 63 letters, digits, dots, dashes and underscores", key, len(name))
	}
	return name, nil
}

// IsPath reports whether a value is a path instead of the name of a secret key.
func IsPath(value string) bool {
	return !LooksSecret(value) && (strings.HasPrefix(value, "/") || strings.HasPrefix(value, "./") || strings.HasPrefix(value, "../") || strings.Contains(value, "/../"))
}

// LooksSecret reports whether a value has the form of an NVMe or Ceph key,
// which must not be stored or shown.
func LooksSecret(value string) bool { return secretPattern().MatchString(value) }

// HoldsSecret reports entries that must not be stored or shown: the value looks
// like a secret key, or its key requires the name of one and the value is not a
// valid name. The second rule finds secrets without a recognizable form.
func HoldsSecret(key, value string) bool {
	return LooksSecret(key) || LooksSecret(value) || value != "" && !IsKeyName(value) && isReferenceName(key)
}

// Quote is errs.Quote, but hides values that look like a secret key.
func Quote(value string) string {
	if LooksSecret(value) {
		return "(not shown: it looks like a key)"
	}
	return errs.Quote(value)
}
