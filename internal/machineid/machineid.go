// Package machineid recognizes placeholders among ids of machines. It is pure.
package machineid

import (
	"slices"
	"strings"
)

// placeholders are values that vendors write instead of an id, in lower case and
// without dashes. The second is the first in the byte order of SMBIOS before 2.6.
var placeholders = []string{
	"03000200040005000006000700080009",
	"00020003000400050006000700080009",
	"123456781234567890abcddeefaabbcc",
	"default string", "none", "not applicable", "not available", "not present", "not settable", "not specified",
	"system uuid", "to be filled by o.e.m.", "uninitialized", "unknown",
}

// IsUnique reports whether an id, a machine-id or a product UUID, can be that of
// one machine alone. SMBIOS (7.2.1) has all bytes 00 for a UUID that does not
// exist, and FF for one that is not set; machine-id(5) forbids 00.
func IsUnique(id string) bool {
	id = strings.ReplaceAll(strings.ToLower(strings.TrimSpace(id)), "-", "")
	isRepeated := len(id) >= 4 && id == strings.Repeat(id[:2], len(id)/2)
	return id != "" && !isRepeated && !slices.Contains(placeholders, id)
}
