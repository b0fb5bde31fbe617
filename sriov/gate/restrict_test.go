package gate

import (
	"fmt"
	"testing"
)

func TestRestrict(t *testing.T) {
	allocate := func(call uint64, id string) AllocateBegin { return AllocateBegin{Call: call, Devices: []string{id}} }
	p := Closed{"p": "drift"}
	for name, moments := range map[string][]timedEvent{
		"the other device stays": {
			{0, Restrict{Seq: 1, Closed: p}, "send [-x y]"},
			{1, allocate(1, "x"), `refuse: device "x" is withdrawn: drift`},
			{1, allocate(2, "y"), "admit"},
			{2, AllocateCheck{Call: 2}, "approve"},
			{3, Sent{1, 2}, "confirm"},
			{4, Confirmed{Restriction: 1, Known: true, Offered: 1}, "arm restrict 54"},
			{54, Expired{TimerRestrict}, "confirm"},
			{55, Confirmed{Restriction: 7, Known: true}, ""},
			{55, Confirmed{Restriction: 1, Known: true}, "acknowledged 1"},
			{56, Restrict{Seq: 2}, "send [x y], acknowledged 2"},
		},
		"without PodResources": {
			{0, Restrict{Seq: 1, Closed: Closed{"x": ""}}, "send [-x y]"},
			{3, Sent{1, 2}, "confirm"},
			{4, Confirmed{Restriction: 1}, "acknowledged 1"},
		},
		"calls of the device": {
			{0, allocate(1, "x"), "admit"},
			{0, allocate(2, "y"), "admit"},
			{1, Restrict{Seq: 1, Closed: p}, "send [-x y]"},
			{2, Sent{1, 2}, ""},
			{3, AllocateCheck{Call: 1}, `refuse: device "x" is withdrawn: drift`},
			{4, AllocateEnd{Call: 1}, "confirm"},
			{5, Confirmed{Restriction: 1}, "acknowledged 1"},
			{6, AllocateCheck{Call: 2}, "approve"},
		},
		"a call that outlives the closing": {
			{0, allocate(1, "x"), "admit"},
			{1, Restrict{Seq: 1, Closed: p}, "send [-x y]"},
			{2, Restrict{Seq: 2}, "send [x y], acknowledged 2"},
			{3, AllocateCheck{Call: 1}, "refuse: the devices were withdrawn while the call was in flight; recreate the pod"},
		},
		"a part of what is withdrawn": {
			{0, Restrict{Seq: 1, Closed: Closed{"p": "drift", "y": "drift"}}, "send [-x -y]"},
			{1, Sent{1, 2}, "confirm"},
			{2, Confirmed{Restriction: 1}, "acknowledged 1"},
			{3, Restrict{Seq: 2, Closed: Closed{"p": "drift"}}, "send [-x y], acknowledged 2"},
		},
		"no device": {
			{0, Restrict{Seq: 1, Closed: Closed{"z": "drift"}}, "acknowledged 1"},
		},
		"a device that moves to the function": {
			{0, Restrict{Seq: 1, Closed: Closed{"z": "drift"}}, "acknowledged 1"},
			{1, Snapshot{Devices: []Device{{ID: "x", Healthy: true, Function: "x", PF: "z"}}}, "send [-x -y], acknowledged 0"},
			{2, Sent{1, 2}, "arm quiet 1002, confirm"},
			{3, Confirmed{Restriction: 1}, "acknowledged 1"},
		},
		"a new stream": {
			{0, Restrict{Seq: 1, Closed: p}, "send [-x y]"},
			{1, StreamDown{Stream: 1}, "arm register 2001, confirm"},
			{2, Confirmed{Restriction: 1}, "acknowledged 1"},
			{3, StreamUp{Stream: 2}, "send [-x y]"},
		},
		"a withdrawal of all": {
			{0, Restrict{Seq: 1, Closed: p}, "send [-x y]"},
			{1, Close{Epoch: 2}, "send [-x -y]"},
			{2, Sent{1, 3}, "confirm"},
			{3, Confirmed{Epoch: 2, Known: true}, "arm quiet 1003, acknowledged 1"},
			{4, Open{Epoch: 3}, "send [-x y]"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := offeredResource(t)
			acknowledged := uint64(0)
			for n, m := range moments {
				got := r.at(m.ms, m.event)
				if a := r.Report().Restriction; a != acknowledged {
					if acknowledged = a; got != "" {
						got += ", "
					}
					got += fmt.Sprintf("acknowledged %d", a)
				}
				if got != m.want {
					t.Fatalf("event %d (%T): %q, want %q", n, m.event, got, m.want)
				}
			}
		})
	}
}

// What the new claim closes is withdrawn at once; what only the old one closes is
// offered after the scan.
func TestTakeoverRestricts(t *testing.T) {
	m := held(t, Claim{Closed: Closed{"p": "drift"}})
	restricts := func(actions []Action) (all []string) {
		for _, a := range actions {
			if to, is := a.(Forward); is {
				if r, restricts := to.Event.(Restrict); restricts {
					all = append(all, fmt.Sprint(r.Closed))
				}
			}
		}
		return all
	}
	acknowledge := func() Status {
		m.Step(noon, Reported{Resource: "a", Report: Report{Phase: Offered, Epoch: m.epoch, Restriction: m.restriction}})
		return m.Status()
	}
	if s := m.Status(); s.Withdrawn {
		t.Errorf("acknowledged before the resource: %+v", s)
	}
	if s := acknowledge(); !s.Withdrawn || s.State != Serving || s.Closed["p"] != "drift" {
		t.Errorf("%+v", s)
	}
	if got := fmt.Sprint(restricts(m.Step(noon, Enable{Session: "second", Claim: Claim{Closed: Closed{"q": "bad"}}}))); got != "[map[p:drift q:bad]]" {
		t.Errorf("before the scan: %s", got)
	}
	if s := acknowledge(); s.Withdrawn {
		t.Error("acknowledged before the scan, after which a device can be another function's")
	}
	if got := fmt.Sprint(restricts(m.Step(noon, Scanned{Seq: m.scan}))); got != "[map[q:bad]]" {
		t.Errorf("after the scan: %s", got)
	}
	if s := acknowledge(); !s.Withdrawn {
		t.Errorf("%+v", s)
	}
	if got := fmt.Sprint(restricts(m.Step(noon, Configured{Hash: "h", Resources: []string{"a", "b"}}))); got != "[map[q:bad]]" {
		t.Errorf("for a new resource: %s", got)
	}
	if s := m.Status(); s.Withdrawn {
		t.Error("acknowledged before the new resource")
	}
}

func TestErrorOfSeveralResources(t *testing.T) {
	m := held(t, Claim{})
	m.Step(noon, Configured{Hash: "h", Resources: []string{"a", "b", "c"}})
	for name, text := range map[string]string{"a": "no kubelet", "b": "invalid name", "c": "no kubelet"} {
		m.Step(noon, Reported{Resource: name, Report: Report{Phase: Offered, Epoch: m.epoch, Error: text}})
	}
	m.Step(noon, Scanned{Seq: m.scan})
	if got, want := m.Status().Error, "a, c: no kubelet; b: invalid name"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
