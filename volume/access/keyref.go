package access

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
)

var (
	referencePattern = pattern(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
	// keyLike is a long run of hex or base64 without a mark that names have.
	keyLike = pattern(`^[A-Za-z0-9+/]{32,}=*$`)
	// secretPattern finds NVMe's interchange formats of keys and Ceph's keys:
	// its AES-128 ones, and those of AES-256 that came in 2026.
	secretPattern = pattern(`(?i)DHHC-1:|NVMeTLSkey-1:|AQ[A-Za-z0-9+/]{36}==|Ag[A-Da-d][A-Za-z0-9+/]{56}=`)
)

// isReference tells the keys under which the name of a key stands.
func isReference(key string) bool {
	return slices.Contains([]string{keyDHChap, keyDHChapCtrlr, keyTLS, keyCephKey}, key)
}

// isReferenceName is isReference for all the names of such a key, in any case.
func isReferenceName(name string) bool {
	return slices.ContainsFunc(dialects(), func(d dialect) bool {
		key, ok := d.canonical(name)
		return ok && isReference(key)
	})
}

// isKeyName tells whether a value can be the name of a key.
func isKeyName(value string) bool {
	return referencePattern().MatchString(value) && !keyLike().MatchString(value) && !LooksSecret(value)
}

// reference reads the name of a key. The key itself never travels in a
// context; what is not a name is refused and not quoted, for it may be one.
func (f fields) reference(key string) (string, error) {
	name := f[key]
	if name == "" {
		return "", nil
	}
	if IsPath(name) {
		return "", fmt.Errorf("%s holds a path (not shown); the name of a key has no slash, so that it cannot lead out of the key directory", key)
	}
	if !isKeyName(name) {
		return "", fmt.Errorf("%s is not the name of a key (its %d characters are not shown, for they may be the key itself); give the name of a file in the key directory: at most 63 letters, digits, dots, dashes and underscores", key, len(name))
	}
	return name, nil
}

// IsPath tells whether a value is a path that somebody gave in the place of the
// name of a key.
func IsPath(value string) bool {
	return !LooksSecret(value) && (strings.HasPrefix(value, "/") || strings.HasPrefix(value, "./") || strings.HasPrefix(value, "../") || strings.Contains(value, "/../"))
}

// LooksSecret tells whether a value is a key itself, by the forms that NVMe and
// Ceph give keys; such a value is not to be kept or shown.
func LooksSecret(value string) bool { return secretPattern().MatchString(value) }

// HoldsSecret tells whether an entry of a context is not to be kept or shown:
// it has the form of a key, or it stands where only the name of a key may, under
// any of the names that the dialects have for that, and is none; a bare key has
// no form of its own.
func HoldsSecret(key, value string) bool {
	return LooksSecret(key) || LooksSecret(value) || value != "" && !isKeyName(value) && isReferenceName(key)
}

// Quote is errs.Quote for values of a context: it does not show what looks like a
// key that somebody put in the wrong place.
func Quote(value string) string {
	if LooksSecret(value) {
		return "(not shown: it looks like a key)"
	}
	return errs.Quote(value)
}
