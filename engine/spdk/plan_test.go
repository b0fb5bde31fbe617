package spdk

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cidr"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// planCase is one volume of target-0, with a grant of n1 at 192.0.2.1, which is on the
// list and connected from there, and a fence of 192.0.2.0/24 but for changes.
type planCase struct {
	state  state
	record *record
	grant  *volume.RecordedGrant
	export *rpc.Subsystem
	pair   *rpc.QueuePair
	shown  observed
}

func newPlanCase(t *testing.T) *planCase {
	fenced := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	r := record{Name: "v", Target: targetName(0), UUID: "00000000-0000-4000-8000-000000000001"}
	c := &planCase{
		state: state{
			Records: volume.Records{Fenced: fenced, Grants: []volume.RecordedGrant{{Grant: volume.Grant{Volume: r.id(), Client: node("n1", "192.0.2.1")}, Fenced: fenced}}},
			volumes: []record{r}, compared: map[string]bool{targetName(0): true}, fenced: testkit.Value(cidr.Set(fenced))(t),
		},
		export: &rpc.Subsystem{NQN: r.nqn(), Namespaces: []rpc.SubsystemDisk{{Bdev: r.UUID}}, Hosts: []rpc.AllowedHost{{NQN: "n1"}}},
		pair:   &rpc.QueuePair{HostNQN: "n1", Peer: rpc.NVMeAddress{Address: "192.0.2.1", Service: "4420"}},
		shown:  observed{exports: map[string]rpc.Subsystem{}, readErrors: map[volume.ID]error{}},
	}
	c.record, c.grant = &c.state.volumes[0], &c.state.Grants[0]
	return c
}

// open is a grant of a client that no fence covers.
func (c *planCase) open(addrs ...string) {
	c.grant.Client, c.grant.Fenced, c.grant.NameOnly = node("n1", addrs...), nil, len(addrs) == 0
}

func (c *planCase) gone() { c.export.Hosts, c.pair = nil, nil }

// A fence is proved when the plan has no step and nothing unproved.
func TestPlan(t *testing.T) {
	const proved = ""
	for name, c := range map[string]struct {
		change  func(c *planCase)
		want    string // the steps
		waiting string // the blocks that wait for the target if it fails
	}{
		"a fenced host is on the list and connected": {func(*planCase) {}, "correct", "192.0.2.0/24"},
		"it is on the list only":                     {func(c *planCase) { c.pair = nil }, "correct", "192.0.2.0/24"},
		"its session has not ended":                  {func(c *planCase) { c.export.Hosts = nil }, "correct", "192.0.2.0/24"},
		"its grant is being revoked":                 {func(c *planCase) { c.grant.Revoking, c.pair = time.Now(), nil }, "correct", "192.0.2.0/24"},
		"it is shut out":                             {func(c *planCase) { c.gone() }, proved, "192.0.2.0/24"},
		"a session of a grant that is being revoked": {func(c *planCase) { c.open("198.51.100.1"); c.grant.Revoking = time.Now(); c.export.Hosts = nil }, "correct", ""},
		"the same, from elsewhere": {func(c *planCase) {
			c.open("198.51.100.1")
			c.grant.Revoking = time.Now()
			c.export.Hosts = nil
			c.pair.Peer.Address = "198.51.100.1"
		}, proved, ""},
		"an admitted host from elsewhere":        {func(c *planCase) { c.open("198.51.100.1"); c.pair.Peer.Address = "198.51.100.1" }, proved, ""},
		"an admitted host from a fenced address": {func(c *planCase) { c.open("198.51.100.1") }, "learn", ""},
		"an admitted host is not on the list":    {func(c *planCase) { c.open("198.51.100.1"); c.gone() }, "behind", ""},
		"every host is admitted":                 {func(c *planCase) { c.open("198.51.100.1"); c.export.AllowAnyHost = true; c.pair = nil }, "correct", ""},
		"a client without an address":            {func(c *planCase) { c.open(); c.pair = nil }, "unproved", "all"},
		"it is not exported yet":                 {func(c *planCase) { c.open(); c.pair = nil; c.export.NQN = "other" }, "unproved", "all"},
		"it is connected":                        {func(c *planCase) { c.open(); c.pair.Peer.Address = "198.51.100.1" }, proved, "all"},
		"it is gone": {func(c *planCase) {
			c.open()
			c.pair, c.shown.gone = nil, map[hostAt]bool{{c.record.nqn(), "n1"}: true}
		}, proved, "all"},
		"the target was not compared": {func(c *planCase) { c.gone(); clear(c.state.compared) }, proved, "all"},
		"a host admitted before the adoption, from nowhere": {func(c *planCase) {
			c.state.Grants = nil
			c.record.Hosts = map[string][]netip.Addr{"n1": nil}
			c.pair = nil
		}, "forget", "all"},
		"one from a fenced address": {func(c *planCase) { c.state.Grants = nil; c.record.Hosts = map[string][]netip.Addr{"n1": nil} }, "forget", "all"},
		"one from elsewhere": {func(c *planCase) {
			c.state.Grants, c.pair.Peer.Address = nil, "198.51.100.1"
			c.record.Hosts = map[string][]netip.Addr{"n1": nil}
		}, proved, "all"},
		"a session of a host that was forgotten": {func(c *planCase) {
			c.state.Grants, c.record.Evicting, c.export.Hosts, c.pair.Peer.Address = nil, true, nil, "198.51.100.1"
		}, "correct", "all"},
		"connections are not read": {func(c *planCase) {
			c.open("198.51.100.1")
			c.pair, c.shown.readErrors[c.record.id()] = nil, errs.Errorf(errs.Internal, "refused")
		}, "unknown unproved", ""},
		"connections of a silent target": {func(c *planCase) {
			c.open("198.51.100.1")
			c.pair, c.shown.readErrors[c.record.id()] = nil, errs.Errorf(errs.Unavailable, "silent")
		}, "unproved", ""},
		"a volume that is being deleted": {func(c *planCase) { c.record.Deleting = true }, "unproved", "192.0.2.0/24"},
		"it is not exported":             {func(c *planCase) { c.export.NQN = "other" }, proved, "192.0.2.0/24"},
		"an export without a record":     {func(c *planCase) { c.state.volumes, c.export.Serial = nil, serialOf("owner") }, "adopt", "192.0.2.0/24"},
		"one of an unknown release":      {func(c *planCase) { c.state.volumes = nil }, "unknown unproved", "192.0.2.0/24"},
		"one of another release":         {func(c *planCase) { c.state.volumes, c.export.Serial = nil, serialOf("other") }, proved, "192.0.2.0/24"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlanCase(t)
			c.change(p)
			p.shown.exports[p.export.NQN] = *p.export
			if p.pair != nil && len(p.state.volumes) > 0 {
				p.shown.pairs = map[volume.ID][]rpc.QueuePair{p.record.id(): {*p.pair}}
			}
			e := &Engine{config: Config{HostNQN: func(node string) string { return node }, Owner: "owner"}}
			if diff := cmp.Diff(c.want, describeSteps(e.plan(p.state, targetName(0), p.shown))); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			all := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
			got := strings.Trim(strings.ReplaceAll(strings.Join(cidrTexts(p.state.waiting(targetName(0), all)), " "), "0.0.0.0/0", "all"), " ")
			if got != c.waiting {
				t.Errorf("blocks that wait for the target: %q, want %q", got, c.waiting)
			}
		})
	}
}

func serialOf(owner string) string { return (&Engine{config: Config{Owner: owner}}).serial() }

func cidrTexts(blocks []netip.Prefix) (texts []string) {
	for _, b := range blocks {
		texts = append(texts, b.String())
	}
	return texts
}

func describeSteps(p steps) string {
	var all []string
	for name, is := range map[string]bool{
		"adopt": len(p.adopt) > 0, "learn": len(p.learn) > 0, "forget": len(p.forget) > 0, "correct": len(p.correct) > 0,
		"unproved": p.unproved != nil, "unknown": p.unknown, "behind": p.behind,
	} {
		if is {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}
