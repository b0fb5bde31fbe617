package gate

import (
	"errors"
	"testing"
)

func TestRestrict(t *testing.T) {
	allocate := func(call int, id string) event { return allocates(call, id) }
	p := Closed{"p": "drift"}
	for name, moments := range map[string][]timedEvent{
		"the other device stays": {
			{0, restricts(p), "send [-x y], pending"},
			{1, allocate(1, "x"), `refuse: device "x" is withdrawn: drift`},
			{1, allocate(2, "y"), "admit"},
			{2, checks(2), "approve"},
			{3, sent(2), "confirm"},
			{4, confirmed(true, 1), "arm confirm 54"},
			{54, tick, "confirm"},
			{55, confirmedEarlier, ""},
			{55, confirmed(true, 0), "acknowledged"},
			{56, restricts(nil), "send [x y]"},
		},
		"without PodResources": {
			{0, restricts(Closed{"x": ""}), "send [-x y], pending"},
			{3, sent(2), "confirm"},
			{4, confirmed(false, 0), "acknowledged"},
		},
		"calls of the device": {
			{0, allocate(1, "x"), "admit"},
			{0, allocate(2, "y"), "admit"},
			{1, restricts(p), "send [-x y], pending"},
			{2, sent(2), ""},
			{3, checks(1), `refuse: device "x" is withdrawn: drift`},
			{4, ends(1), "confirm"},
			{5, confirmed(false, 0), "acknowledged"},
			{6, checks(2), "approve"},
		},
		"a call that outlives the closing": {
			{0, allocate(1, "x"), "admit"},
			{1, restricts(p), "send [-x y], pending"},
			{2, restricts(nil), "send [x y], acknowledged"},
			{3, checks(1), "refuse: the devices were withdrawn while the call was in flight; recreate the pod"},
		},
		"a part of what is withdrawn": {
			{0, restricts(Closed{"p": "drift", "y": "drift"}), "send [-x -y], pending"},
			{1, sent(2), "confirm"},
			{2, confirmed(false, 0), "acknowledged"},
			{3, restricts(Closed{"p": "drift"}), "send [-x y]"},
		},
		"an answer about fewer devices": {
			{0, restricts(p), "send [-x y], pending"},
			{1, sent(2), "confirm"},
			{2, restricts(Closed{"p": "drift", "q": "drift"}), "send [-x -y]"},
			{3, confirmed(true, 0), ""},
			{4, sent(3), "confirm"},
			{5, confirmed(true, 0), "acknowledged"},
		},
		"no device": {
			{0, restricts(Closed{"z": "drift"}), ""},
		},
		"a device that moves to the function": {
			{0, restricts(Closed{"z": "drift"}), ""},
			{1, snapshot(Device{ID: "x", Healthy: true, Function: "x", PF: "z"}), "send [-x -y], pending"},
			{2, sent(2), "arm quiet 1002, confirm"},
			{3, confirmed(false, 0), "acknowledged"},
		},
		"a new stream": {
			{0, restricts(p), "send [-x y], pending"},
			{1, hangup(1), "arm register 2001, confirm"},
			{2, confirmed(false, 0), "acknowledged"},
			{3, listens, "send [-x y]"},
		},
		"a withdrawal of all": {
			{0, restricts(p), "send [-x y], pending"},
			{1, closes, "send [-x -y]"},
			{2, sent(3), "confirm"},
			{3, confirmed(true, 0), "arm quiet 1003, acknowledged"},
			{4, opens, "send [-x y]"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := offeredResource(t)
			acknowledged := true
			for n, m := range moments {
				got := r.at(m.ms, m.event)
				if acknowledged != r.acknowledged {
					if got != "" {
						got += ", "
					}
					acknowledged = r.acknowledged
					got += map[bool]string{true: "acknowledged", false: "pending"}[acknowledged]
				}
				if !same(got, m.want) {
					t.Fatalf("event %d: %q, want %q", n, got, m.want)
				}
			}
		})
	}
}

// What the new claim closes is withdrawn at once; what only the old one closes is
// offered after the scan.
func TestTakeoverRestricts(t *testing.T) {
	r, _ := held(t, Claim{Closed: Closed{"pf0": "drift"}})
	m := r.gate
	if got := listed(r.stream.List); got != "[-a0 a1]" {
		t.Errorf("the first list is %s", got)
	}
	if s := m.Status(); !s.Withdrawn || s.State != Serving || s.Closed["pf0"] != "drift" {
		t.Errorf("%+v", s)
	}
	_, err := m.Enable(noon, "second", Claim{Closed: Closed{"pf1": "bad"}})
	if got := listed(r.stream.List); err != nil || got != "[-a0 -a1]" {
		t.Errorf("before the scan: %s, %v", got, err)
	}
	if r.withdrawn(noon, Answer{Known: true}); m.Status().Withdrawn {
		t.Error("acknowledged before the scan, after which a device can be another function's")
	}
	r.scanned()
	if got := listed(r.stream.List); got != "[a0 -a1]" {
		t.Errorf("after the scan: %s", got)
	}
	if s := m.Status(); !s.Withdrawn {
		t.Errorf("%+v", s)
	}
	m.Configure(noon, "h", []string{"a", "b"})
	if got := m.resources["b"].closed["pf1"]; got != "bad" {
		t.Errorf("for a new resource: %q", got)
	}
}

func TestErrorOfSeveralResources(t *testing.T) {
	r, _ := held(t, Claim{})
	m := r.gate
	m.Configure(noon, "h", []string{"a", "b", "c"})
	devices := map[string][]Device{}
	for _, name := range m.names() {
		devices[name] = []Device{testDevice(name, 0, true)}
	}
	m.Scanned(noon, m.scan, devices, nil)
	for name, text := range map[string]string{"b": "invalid name", "c": "no kubelet"} {
		m.Registered(noon, name, errors.New(text))
	}
	r.at(0, hangup(1))
	r.at(2000, tick, registered(errors.New("no kubelet")))
	if got, want := m.Status().Error, "a, c: no kubelet; b: invalid name"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
