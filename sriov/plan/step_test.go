package plan

import "testing"

func TestStepsSayWhatTheyDo(t *testing.T) {
	vf := vfAddress(3)
	for want, s := range map[string]Step{
		"remove the virtual functions of 0000:3b:00.0":                                                   SetNumVFs{pf0, 0},
		"make 8 virtual functions on 0000:3b:00.0":                                                       SetNumVFs{pf0, 8},
		"switch the embedded switch of 0000:3b:00.0 to mode switchdev":                                   SetESwitch{pf0, Switchdev},
		"set the MTU of 0000:3b:00.0 to 9000":                                                            SetMTU{pf0, 9000},
		"bring up 0000:3b:00.0":                                                                          SetUp{pf0},
		"set the administrative MAC address of 0000:3b:02.3 (VF 3 of 0000:3b:00.0) to 02:00:00:00:00:01": SetMAC{pf0, 3, vf, "02:00:00:00:00:01"},
		"set the GUIDs of 0000:3b:02.3 (VF 3 of 0000:3b:00.0) to 02:00:00:00:00:00:00:01":                SetGUID{pf0, 3, vf, "02:00:00:00:00:00:00:01"},
		"turn trust on for 0000:3b:02.3 (VF 3 of 0000:3b:00.0)":                                          SetTrust{pf0, 3, vf, true},
		"turn spoof checking off for 0000:3b:02.3 (VF 3 of 0000:3b:00.0)":                                SetSpoofCheck{pf0, 3, vf, false},
		"bind 0000:3b:02.3 to its default driver":                                                        Bind{vf, ""},
		"bind 0000:3b:02.3 to vfio-pci":                                                                  Bind{vf, "vfio-pci"},
		"unbind 0000:3b:02.3 from its driver":                                                            Unbind{vf},
		"make a vDPA device (vhost) on 0000:3b:02.3":                                                     SetVDPA{vf, "vhost"},
		"remove the vDPA device of 0000:3b:02.3":                                                         SetVDPA{vf, ""},
	} {
		if s.String() != want {
			t.Errorf("%#v says %q, want %q", s, s, want)
		}
		if f := s.Function(); f != pf0 && f != vf {
			t.Errorf("%v is of %q", s, f)
		}
	}
}
