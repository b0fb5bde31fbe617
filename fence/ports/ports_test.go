package ports

import (
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestParse(t *testing.T) {
	for words, want := range map[string]string{
		"4420":                         "4420",
		"4420,3260":                    "3260,4420",
		"nvme-tcp":                     "4420,8009",
		"ceph,3301":                    "3300-3301,6789,6800-7568",
		"1-65535":                      "1-65535",
		"10-20,15-30,31":               "10-31",
		strings.Join(Protocols(), ","): Storage().String(),
		"nbd,drbd,smb,glusterfs":       "139,445,7788-7799,10809,24007-24008,49152-49664",
		" 2049 , nfs ":                 "2049",
		"65535,1":                      "1,65535",
		"":                             "error: neither a port",
		"0":                            "error: 1 to 65535",
		"65536":                        "error: 1 to 65535",
		"7-":                           "error: 1 to 65535",
		"-7":                           "error: 1 to 65535",
		"9-7":                          "error: write 7-9",
		"nvmetcp":                      `error: did you mean "nvme-tcp"?`,
		"80;reboot":                    "error: neither a port",
		"99999999999999999999":         "error: 1 to 65535",
		"6800-7568-9000":               "error: 1 to 65535",
		"4420,,3260":                   "error: neither a port",
	} {
		s, err := Parse(strings.Split(words, ","))
		if wrong, isError := strings.CutPrefix(want, "error: "); isError {
			if err == nil || !strings.Contains(err.Error(), wrong) {
				t.Errorf("%q: got %v, %v; want an error with %q", words, s, err, wrong)
			}
			continue
		}
		if err != nil || s.String() != want {
			t.Errorf("%q: got %v, %v; want %s", words, s, err, want)
		}
	}
	if s, err := Parse(nil); err == nil {
		t.Errorf("without words: %v", s)
	}
}

func TestContains(t *testing.T) {
	s := testkit.Value(Parse([]string{"10-20", "30"}))(t)
	for port, want := range map[uint16]bool{9: false, 10: true, 20: true, 21: false, 30: true, 0: false, 65535: false} {
		if got := s.Contains(port); got != want || !All().Contains(port) {
			t.Errorf("%d: got %v, want %v", port, got, want)
		}
	}
	if !All().IsAll() || s.IsAll() || All().String() != "all" {
		t.Error("all traffic equals some traffic")
	}
}

// String and Parse are inverse.
func FuzzParse(f *testing.F) {
	for _, word := range []string{"4420", "6800-7568", "ceph,1", "0-", "-", "nfs,nfs"} {
		f.Add(word)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(strings.Split(text, ","))
		if err != nil {
			return
		}
		again, err := Parse(strings.Split(s.String(), ","))
		if err != nil || again.String() != s.String() {
			t.Errorf("%q is %v, which parses as %v, %v", text, s, again, err)
		}
	})
}
