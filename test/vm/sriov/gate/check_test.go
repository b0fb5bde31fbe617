package gate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
)

// Event, Functions and Virtual mirror the types of the program node.
type (
	Event struct {
		At           time.Time
		Resource     string
		Healthy, All []string
		Functions    *Functions
		Since        time.Time
		Broken       string
	}
	Functions struct {
		Number, MTU int
		Virtual     []Virtual
	}
	Virtual struct {
		Address, Driver, Override, Netdev, MAC string
		MTU                                    int
	}
)

func (r *rig) events(from int) (all []Event, err error) {
	err = r.ask(nodeSocket, http.MethodGet, "/events", url.Values{"from": {fmt.Sprint(from)}}, &all)
	return all, err
}

func (r *rig) all() []Event {
	r.Helper()
	all := testkit.Value(r.events(0))(r)
	return all
}

// offered returns the devices that are offered after these events, by resource.
func offered(events []Event) map[string][]string {
	now := map[string][]string{}
	for _, e := range events {
		if e.Resource == "" {
			continue
		}
		delete(now, e.Resource)
		if len(e.Healthy) > 0 {
			now[e.Resource] = e.Healthy
		}
	}
	return now
}

// wanted returns the desired offer, by resource.
func (r *rig) wanted() map[string][]string {
	r.Helper()
	all := map[string][]string{}
	for i := range r.desired.number() {
		resource := network
		if i >= r.desired.network {
			resource = userspace
		}
		all[resource] = append(all[resource], r.virtual(i))
	}
	for _, ids := range all {
		slices.Sort(ids)
	}
	return all
}

// serves waits until exactly the desired devices are offered, and checks all
// events until then.
func (r *rig) serves() {
	r.Helper()
	r.agreed()
	want := r.wanted()
	r.Await(fmt.Sprintf("%v is offered", want), func() bool { return reflect.DeepEqual(offered(r.all()), want) })
	if d := r.differs(r.now()); d != "" {
		r.Errorf("the daemon is serving: %s", d)
	}
	r.addresses()
	r.check()
}

// addresses verifies the card's VF table: a MAC for each function, equal to
// that of its network device, and the desired trust and spoof check.
func (r *rig) addresses() {
	r.Helper()
	table := r.Run("ip", "link", "show", r.netdev)
	for i, v := range r.now().Virtual {
		_, line, there := strings.Cut(table, fmt.Sprintf("vf %d ", i))
		line, _, _ = strings.Cut(line, "\n")
		switch {
		case !there || strings.Contains(line, "00:00:00:00:00:00"):
			r.Errorf("VF %d has no MAC:\n%s", i, table)
		case v.MAC != "" && !strings.Contains(line, v.MAC):
			r.Errorf("VF %d has MAC %s, but the VF table has %s", i, v.MAC, line)
		case i < r.desired.network && !(strings.Contains(line, "spoof checking off") && strings.Contains(line, "trust on")):
			r.Errorf("VF %d: got %s, want trust on and spoof checking off", i, line)
		}
	}
}

// now returns the latest state of the functions.
func (r *rig) now() (f Functions) {
	r.Helper()
	for _, e := range r.all() {
		if e.Functions != nil {
			f = *e.Functions
		}
	}
	return f
}

// offersNothing verifies that no device was offered since the last check.
func (r *rig) offersNothing(why string) {
	r.Helper()
	all := r.all()
	if now := offered(all); len(now) > 0 {
		r.Errorf("%s: %v is offered", why, now)
	}
	for _, e := range all[r.checked:] {
		if len(e.Healthy) > 0 {
			r.Errorf("%s: %v of %s was offered at %v", why, e.Healthy, e.Resource, e.At)
		}
	}
	r.check()
}

// withdrawn waits until no device is offered, and checks all events until then.
func (r *rig) withdrawn(why string) {
	r.Helper()
	r.Await(why+": nothing is offered", func() bool { return len(offered(r.all())) == 0 })
	r.check()
}

// check verifies the events since the last check: offered functions are in the
// desired state, or in the previous one, whose lists can come until the daemon has
// read the new one; and neither changes of a function nor steps of a daemon on it
// overlap with its offer.
func (r *rig) check() {
	r.Helper()
	all := r.all()
	spans := offers(all)
	for _, e := range all[r.checked:] {
		switch {
		case e.Broken != "":
			r.Errorf("error that would break a kubelet: %s", e.Broken)
		case len(e.Healthy) > 0 && e.Functions != nil && r.differs(*e.Functions, e.Healthy...) != "" && r.differsFrom(r.previous, *e.Functions, e.Healthy...) != "":
			r.Errorf("%v of %s is offered at %v: %s", e.Healthy, e.Resource, e.At, r.differs(*e.Functions, e.Healthy...))
		}
	}
	r.changes(all, spans)
	for _, s := range r.steps() {
		for _, o := range spans {
			if (s.device == r.pf || s.device == o.device) && s.begun.Before(o.end) && o.begun.Before(s.end) {
				r.Errorf("%q from %v to %v, while %s is offered from %v to %v", s.name, s.begun, s.end, o.device, o.begun, o.end)
			}
		}
	}
	r.checked, r.previous = len(all), r.desired
}

// changes verifies that no function changed between two reads while it was
// offered, and the card not while any was.
func (r *rig) changes(all []Event, spans []span) {
	r.Helper()
	var before *Functions
	for i, e := range all {
		if e.Functions == nil || e.Resource != "" {
			continue
		}
		if i >= r.checked && before != nil && !same(*before, *e.Functions) {
			for _, o := range spans {
				if o.begun.Before(e.Since) && e.At.Before(o.end) && !same(only(*before, o.device), only(*e.Functions, o.device)) {
					r.Errorf("the functions changed between %v and %v, while %s was offered from %v to %v: from %+v to %+v",
						e.Since, e.At, o.device, o.begun, o.end, *before, *e.Functions)
				}
			}
		}
		before = e.Functions
	}
}

// only leaves one of the virtual functions.
func only(f Functions, address string) Functions {
	f.Virtual = slices.DeleteFunc(slices.Clone(f.Virtual), func(v Virtual) bool { return v.Address != address })
	return f
}

// same compares functions, except for network devices that moved to or from a
// pod.
func same(a, b Functions) bool {
	for i := range min(len(a.Virtual), len(b.Virtual)) {
		x, y := &a.Virtual[i], &b.Virtual[i]
		if x.Netdev == "" || y.Netdev == "" {
			a.Virtual, b.Virtual = slices.Clone(a.Virtual), slices.Clone(b.Virtual)
			for _, v := range []*Virtual{&a.Virtual[i], &b.Virtual[i]} {
				v.Netdev, v.MAC, v.MTU = "", "", 0
			}
		}
	}
	return reflect.DeepEqual(a, b)
}

// span is the duration of a step on a function, or of the offer of a device.
type span struct {
	name, device string
	begun, end   time.Time
}

// offers returns the time spans of offers. A current offer ends in the future.
func offers(events []Event) []span {
	lists := slices.DeleteFunc(slices.Clone(events), func(e Event) bool { return e.Resource == "" })
	slices.SortStableFunc(lists, func(a, b Event) int { return a.At.Compare(b.At) })
	begun := map[string]time.Time{}
	offering := map[string][]string{} // devices by resource
	var spans []span
	for _, e := range lists {
		for _, device := range offering[e.Resource] {
			if !slices.Contains(e.Healthy, device) {
				spans = append(spans, span{device: device, begun: begun[device], end: e.At})
				delete(begun, device)
			}
		}
		for _, device := range e.Healthy {
			if _, open := begun[device]; !open {
				begun[device] = e.At
			}
		}
		offering[e.Resource] = e.Healthy
	}
	for _, device := range slices.Sorted(maps.Keys(begun)) {
		spans = append(spans, span{device: device, begun: begun[device], end: begun[device].Add(time.Hour)})
	}
	return spans
}

// steps returns the steps in the logs of all daemons since the boot.
func (r *rig) steps() []span {
	r.Helper()
	var all []span
	for _, line := range r.daemonLog() {
		var said struct {
			Time                time.Time
			Msg, Step, Function string
			Duration            string // as 0.0125s
		}
		if json.Unmarshal([]byte(line), &said) != nil || said.Msg != "step done" && said.Msg != "step failed" {
			continue
		}
		took, err := time.ParseDuration(said.Duration)
		if err != nil {
			r.Fatalf("parse the duration of a step: %v", err)
		}
		all = append(all, span{name: said.Step, device: said.Function, begun: said.Time.Add(-took), end: said.Time})
	}
	slices.SortStableFunc(all, func(a, b span) int { return cmp.Or(a.begun.Compare(b.begun), a.end.Compare(b.end)) })
	return all
}

// countSteps counts steps since the boot whose text contains text.
func (r *rig) countSteps(text string) (n int) {
	r.Helper()
	for _, s := range r.steps() {
		if strings.Contains(s.name, text) {
			n++
		}
	}
	return n
}
