package access

import (
	"fmt"
	"regexp"
	"slices"
)

var (
	referencePattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
	// keyLike is a long run of hex or base64 without a mark that names have.
	keyLike = regexp.MustCompile(`^[A-Za-z0-9+/]{32,}=*$`)
)

// isReference tells the keys under which the name of a key stands.
func isReference(key string) bool {
	return slices.Contains([]string{keyDHChap, keyDHChapCtrlr, keyTLS, keyCephKey}, key)
}

// reference reads the name of a key. The key itself never travels in a
// context; what is not a name is refused and not quoted, for it may be one.
func (f fields) reference(key string) (string, error) {
	name := f[key]
	if name == "" {
		return "", nil
	}
	if !referencePattern.MatchString(name) || keyLike.MatchString(name) || secretPattern.MatchString(name) {
		return "", fmt.Errorf("%s is not the name of a key (its %d characters are not shown, for they may be the key itself); give the name of a file in the key directory: at most 63 letters, digits, dots, dashes and underscores", key, len(name))
	}
	return name, nil
}

// LooksSecret tells whether a value is a key itself, by the forms that NVMe and
// Ceph give keys; such a value is not to be kept or shown.
func LooksSecret(value string) bool { return secretPattern.MatchString(value) }
