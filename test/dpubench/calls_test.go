package dpubench

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// target returns a network with n subsystems of one namespace each.
func target(n int) *spdktest.Network {
	network := spdktest.NewNetwork(nil)
	for i := range n {
		network.Put(spdktest.Subsystem{
			NQN: nqn(i), AnyHost: true, Addresses: []spdktest.Address{{Transport: "TCP", Host: address, Port: fmt.Sprint(port)}},
			Namespaces: []spdktest.Namespace{{ID: 1, UUID: uuid(i)}},
		})
	}
	return network
}

// asked returns the requests since the last Forget.
func asked(p *spdktest.Process) []string {
	var all []string
	for _, c := range p.Calls() {
		var named struct{ Name string }
		_ = json.Unmarshal(c.Params, &named) // requests without an object have no name
		word := c.Method
		if c.Method == "bdev_get_bdevs" && named.Name == "" {
			word += " of all"
		}
		all = append(all, word)
	}
	p.Forget()
	return all
}

// The requests of a call must not depend on the number of devices: SNAP serves
// them one by one on the core that also moves the data.
func TestRequestsDoNotGrowWithDevices(t *testing.T) {
	const few, many = 2, 300
	s := newSite(t)
	process := testkit.Value(target(many + 1).Start(spdktest.Config{Socket: s.snap, SNAP: true}))(s)
	t.Cleanup(func() { testkit.Must(s, process.Close()) })
	s.start()
	seen := map[int]map[string][]string{}
	have := 0
	for _, present := range []int{few, many} {
		s.present(t.Context(), have, present)
		have = present
		seen[present] = map[string][]string{}
		do := func(what string, call func() error) {
			t.Helper()
			process.Forget()
			testkit.Must(s, call())
			seen[present][what] = asked(process)
		}
		var name string
		do("CreateDevice", func() (err error) {
			name, err = s.client.Create(t.Context(), namespace(many, true))
			return err
		})
		do("CreateDevice again", func() error {
			_, err := s.client.Create(t.Context(), namespace(many, true))
			return err
		})
		do("GetDevice", func() error {
			_, err := s.client.Get(t.Context(), volumeID(many), name)
			return err
		})
		do("ListDevices", func() error {
			_, _, err := s.client.List(t.Context(), 100, "")
			return err
		})
		do("DeleteDevice", func() error { return s.client.Delete(t.Context(), volumeID(many), name) })
		do("CreateDevice of the only namespace", func() error {
			_, err := s.client.Create(t.Context(), namespace(many, false))
			return err
		})
		testkit.Must(s, s.client.Delete(t.Context(), volumeID(many), name))
	}
	for _, what := range slices.Sorted(maps.Keys(seen[few])) {
		if !slices.Equal(seen[few][what], seen[many][what]) {
			t.Errorf("%s sends SNAP %q with %d devices present and for %q with %d", what, seen[few][what], few, seen[many][what], many)
		}
		if slices.Contains(seen[many][what], "bdev_get_bdevs of all") {
			t.Errorf("%s lists every bdev: %q", what, seen[many][what])
		}
	}
	// The benchmark's bare client sends the same ones.
	for what, want := range map[string][]string{
		"CreateDevice": createRequests(), "CreateDevice of the only namespace": createRequests(), "CreateDevice again": getRequests(), "GetDevice": getRequests(), "ListDevices": nil, "DeleteDevice": deleteRequests(),
	} {
		if got := seen[many][what]; !slices.Equal(got, want) {
			t.Errorf("%s sends SNAP %q, want %q", what, got, want)
		}
	}
}
