package plan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The operator's file of GUIDs decides, also over GUIDs that functions have.
func TestStaticGUIDs(t *testing.T) {
	pf := ready(2)
	infiniband(&pf)
	pf.VFs[1].NodeGUID, pf.VFs[1].PortGUID = "02:00:00:00:00:00:00:09", "02:00:00:00:00:00:00:09"
	for name, c := range map[string]struct{ text, first, second string }{
		"a list":     {`[{"pciAddress":"0000:3b:00.0","guids":["00:01:02:03:04:05:06:07","00:01:02:03:04:05:06:17"]}]`, "00:01:02:03:04:05:06:07", "00:01:02:03:04:05:06:17"},
		"a range":    {`[{"pciAddress":"0000:3b:00.0","rangeStart":"00:01:02:03:04:05:06:ff","rangeEnd":"00:01:02:03:04:05:07:01"}]`, "00:01:02:03:04:05:06:ff", "00:01:02:03:04:05:07:00"},
		"by address": {`[{"pfGuid":"` + strings.ToUpper(pf.MAC) + `","guids":["00:01:02:03:04:05:06:07","00:01:02:03:04:05:06:17"]}]`, "00:01:02:03:04:05:06:07", "00:01:02:03:04:05:06:17"},
	} {
		pools, err := ParseGUIDs([]byte(c.text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		p := Make(one(2, vfio("0-1")), State{PFs: []PF{pf}}, Options{GUIDs: pools})
		want := []Step{
			SetGUID{pf0, 0, vfAddress(0), c.first}, Bind{vfAddress(0), "vfio-pci"},
			SetGUID{pf0, 1, vfAddress(1), c.second}, Bind{vfAddress(1), "vfio-pci"},
		}
		if diff := cmp.Diff(want, p.Steps); diff != "" {
			t.Errorf("%s: steps (-want +got):\n%s", name, diff)
		}
	}
}

func TestTooFewStaticGUIDs(t *testing.T) {
	pf := ready(2)
	infiniband(&pf)
	p := Make(one(2, group("0-1")), State{PFs: []PF{pf}}, Options{GUIDs: []GUIDPool{{PF: pf0, List: []string{"00:01:02:03:04:05:06:07"}}}})
	if len(p.Steps) != 0 || len(p.Problems) != 1 || !strings.Contains(p.Problems[0].Reason, "has 1 GUIDs for it, numVfs is 2") {
		t.Errorf("%+v, want a problem alone", p)
	}
}

func TestParseGUIDsRefuses(t *testing.T) {
	for text, says := range map[string]string{
		`{}`:   "GUID file",
		`[{}]`: "want one of pciAddress and pfGuid",
		`[{"pciAddress":"0000:3b:00.0","pfGuid":"x","guids":["00:01:02:03:04:05:06:07"]}]`:                            "want one of pciAddress and pfGuid",
		`[{"pciAddress":"0000:3b:00.0"}]`:                                                                             "want guids, or rangeStart and rangeEnd",
		`[{"pciAddress":"0000:3b:00.0","rangeStart":"00:01:02:03:04:05:06:07"}]`:                                      "want guids, or rangeStart and rangeEnd",
		`[{"pciAddress":"0000:3b:00.0","guids":["00:01:02:03:04:05"]}]`:                                               `"00:01:02:03:04:05" is no GUID`,
		`[{"pciAddress":"0000:3b:00.0","rangeStart":"00:01:02:03:04:05:06:07","rangeEnd":"00:01:02:03:04:05:06:06"}]`: "is before rangeStart",
		`[{"pciAddress":"0000:3b:00.0","rangeStart":"00:00:00:00:00:00:00:00","rangeEnd":"ff:ff:ff:ff:ff:ff:ff:ff"}]`: "",
	} {
		pools, err := ParseGUIDs([]byte(text))
		if says == "" {
			if err != nil || pools[0].count() < 1<<20 {
				t.Errorf("%s: %v, %v", text, pools, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
}
