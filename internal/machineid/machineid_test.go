package machineid_test

import (
	"testing"

	"github.com/cleatproject/cleat/internal/machineid"
)

func TestIsUnique(t *testing.T) {
	for id, want := range map[string]bool{
		"4C4C4544-0042-3510-8052-B4C04F564433\n": true,
		"4c4c454400423510b8c04f5644338052":       true,
		"211ECFA":                                true, // of a machine without SMBIOS
		"":                                       false,
		"\n":                                     false,
		"00000000-0000-0000-0000-000000000000":   false,
		"FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF":   false,
		"00000000000000000000000000000000":       false,
		"fefefefe-fefe-fefe-fefe-fefefefefefe":   false,
		"03000200-0400-0500-0006-000700080009":   false,
		"00020003-0004-0005-0006-000700080009":   false,
		"12345678-1234-5678-90AB-CDDEEFAABBCC":   false,
		"Not Settable":                           false,
		"uninitialized":                          false,
	} {
		if got := machineid.IsUnique(id); got != want {
			t.Errorf("%q is unique: %t", id, got)
		}
	}
}
