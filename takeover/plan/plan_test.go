package plan

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var (
	begin   = time.Date(2026, 11, 27, 12, 0, 0, 123456789, time.UTC)
	address = netip.MustParseAddr("192.0.2.7")
)

// lost is the first observation of a lost node with one volume of Ceph.
func lost() Observation {
	return Observation{
		Now:   begin,
		Lease: Lease{Held: true, Term: 1},
		Config: Config{
			Coverage: []Rule{
				{Driver: "rbd", Cluster: "b", Backend: "ceph-b"}, {Driver: "rbd", Backend: "ceph"}, {Driver: "local.cleat", Local: true},
				{Driver: "none.cleat"}, {Driver: "typo", Backend: "cehp"}, {Driver: "hostPath", Local: true}, {Driver: "nfs.csi", Backend: "ceph"},
			},
			Backends:      []Backend{{Name: "ceph"}, {Name: "ceph-b", NodeAddresses: true}},
			MaxConcurrent: 1,
		},
		Remediation: Remediation{Name: "node-7", UID: "uid", Created: begin, Node: "node-7"},
		Node:        &Node{UID: "node-uid", Machine: Machine{"node-7", "m", "s", "boot-1"}},
		Volumes:     []Volume{{Name: "pv-1", Plugin: "csi", Driver: "rbd", Handle: "h", SeenIn: []string{"VolumeAttachment csi-1"}}},
		Clients:     []Client{{Machine: "node-7", Source: FromGrant, Backend: "ceph", Addresses: []netip.Addr{address}}},
		Protected:   []Protected{{netip.MustParsePrefix("192.0.2.8/32"), "node node-8"}, {netip.MustParsePrefix("10.96.0.0/16"), "services"}},
		Pods:        []Pod{{Namespace: "a", Name: "p", UID: "pod-uid"}, {Namespace: "a", Name: "tolerant", ToleratesOutOfService: true}},
	}
}

// perform does what a step says, without faults.
func perform(o *Observation, step Step) (rest bool) {
	if !reflect.DeepEqual(step.Status, o.Remediation.Status) {
		o.Remediation.Status = step.Status
		return false
	}
	for _, action := range step.Actions {
		switch a := action.(type) {
		case AddFinalizer:
			o.Remediation.Finalizer = true
		case RemoveFinalizer:
			o.Remediation.Finalizer = false
		case ClaimNode:
			o.Node.Claim, o.Node.Unschedulable = a.Claim, true
		case Fence:
			read := ReadBack{Backend: a.Backend, Intent: o.Remediation.Status.Intent.Digest, Held: a.Addresses, Recorded: a.Addresses, Evidence: []string{"3 OSDs"}, At: begin}
			o.ReadBacks = append(slices.DeleteFunc(o.ReadBacks, func(r ReadBack) bool { return r.Backend == a.Backend }), read)
		case Unfence:
			for i, r := range o.ReadBacks {
				if r.Backend == a.Backend {
					o.ReadBacks[i].Held, o.ReadBacks[i].Recorded, o.ReadBacks[i].Lifted = nil, nil, true
				}
			}
		case TaintNode:
			o.Node.OutOfService = &a.Value
		case DeletePods:
			o.Pods = nil
		case LeaveNode:
			o.Node.Claim = a.Claim
			if a.RemoveTaint {
				o.Node.OutOfService = nil
			}
			if a.Uncordon {
				o.Node.Unschedulable = false
			}
		}
	}
	return len(step.Actions) == 0
}

// run continues until nothing is left to do, and returns the actions.
func run(t *testing.T, o *Observation) (actions []Action) {
	t.Helper()
	for range 40 {
		step := Next(*o)
		written := reflect.DeepEqual(step.Status, o.Remediation.Status)
		if perform(o, step) {
			return actions
		}
		if written {
			actions = append(actions, step.Actions...)
		}
	}
	t.Fatal("never at rest")
	return nil
}

// until continues until the status is as wanted.
func until(t *testing.T, o *Observation, is func(Status) bool) {
	t.Helper()
	for range 20 {
		if is(o.Remediation.Status) {
			return
		}
		perform(o, Next(*o))
	}
	t.Fatalf("not reached: %+v", o.Remediation.Status)
}

func recorded(s Status) bool  { return s.Record != nil }
func intended(s Status) bool  { return s.Intent != nil }
func certified(s Status) bool { return s.Certificate != nil }

func kinds(actions []Action) (all []string) {
	for _, a := range actions {
		all = append(all, strings.TrimPrefix(reflect.TypeOf(a).String(), "plan."))
	}
	return all
}

func TestTakeover(t *testing.T) {
	o := lost()
	got := kinds(run(t, &o))
	if diff := cmp.Diff([]string{"AddFinalizer", "ClaimNode", "Fence", "TaintNode", "DeletePods"}, got); diff != "" {
		t.Errorf("takeover (-want +got):\n%s", diff)
	}
	s := o.Remediation.Status
	if !s.is(Succeeded) || s.is(Processing) || s.condition(Succeeded).Reason != ReasonTakenOver {
		t.Errorf("conditions %+v", s.Conditions)
	}
	if err := s.Verify(); err != nil {
		t.Error(err)
	}
	want := []Proof{{Backend: "ceph", Addresses: []netip.Addr{address}, Evidence: []string{"3 OSDs"}, At: begin}}
	if diff := cmp.Diff(want, s.Certificate.Proofs, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("proofs (-want +got):\n%s", diff)
	}

	o.Remediation.Deleting = true // the network returned, and NodeHealthCheck is content
	o.Node.Ready = true
	if got := run(t, &o); len(got) > 0 {
		t.Errorf("the same boot returned: %v", kinds(got))
	}
	o.Node.Machine.BootID = "boot-2"
	got = kinds(run(t, &o))
	if diff := cmp.Diff([]string{"Unfence", "LeaveNode", "RemoveFinalizer"}, got); diff != "" {
		t.Errorf("release (-want +got):\n%s", diff)
	}
	if o.Node.Unschedulable || o.Node.OutOfService != nil || !o.Remediation.Status.is(Succeeded) {
		t.Errorf("left: %+v, %+v", o.Node, o.Remediation.Status.Conditions)
	}
}

// A status that went through the API server has the same digests.
func TestDigests(t *testing.T) {
	o := lost()
	run(t, &o)
	text, err := json.Marshal(o.Remediation.Status)
	if err != nil {
		t.Fatal(err)
	}
	read := func() (s Status) {
		if err := json.Unmarshal(text, &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := read()
	if err := s.Verify(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Status){
		"boot":     func(s *Status) { s.Record.Machines[0].BootID = "boot-2" },
		"address":  func(s *Status) { s.Intent.Targets[0].Addresses = nil },
		"evidence": func(s *Status) { s.Certificate.Proofs[0].Evidence = nil },
		"record":   func(s *Status) { s.Record.Volumes = nil; s.Record = s.Record.sealed() },
		"intent":   func(s *Status) { s.Intent.Targets = nil; s.Intent = s.Intent.sealed() },
		"none":     func(s *Status) { s.Certificate = nil },
	} {
		s := read()
		change(&s)
		if s.Verify() == nil {
			t.Errorf("%s was changed, and the certificate is valid", name)
		}
	}
}

// What stops before anything is fenced, and what it says.
func TestObstacles(t *testing.T) {
	volume := func(change func(*Volume)) func(*Observation) {
		return func(o *Observation) { change(&o.Volumes[0]) }
	}
	clients := func(change func(*Client)) func(*Observation) {
		return func(o *Observation) { change(&o.Clients[0]) }
	}
	for _, c := range []struct {
		name, reason, message string
		change                func(*Observation)
	}{
		{"no rule", ReasonDriverNotConfigured, "pv-1 (other)", volume(func(v *Volume) { v.Driver = "other" })},
		{"backend without configuration", ReasonDriverNotConfigured, "pv-1 (typo)", volume(func(v *Volume) { v.Driver = "typo" })},
		{"NFS", ReasonNFSVolume, "pv-1 (nfs)", volume(func(v *Volume) { v.Plugin = "nfs" })},
		{"plugin of Kubernetes", ReasonVolumeUnknown, "pv-1 (iscsi)", volume(func(v *Volume) { v.Plugin = "iscsi" })},
		{"inline", ReasonInlineVolume, "inline", volume(func(v *Volume) { v.Inline = true })},
		{"no VolumeAttachment", ReasonNoVolumeAttachment, "nfs.csi", volume(func(v *Volume) { v.Driver, v.NoAttachment = "nfs.csi", true })},
		{"engine none", ReasonNoFenceService, "without a backend", volume(func(v *Volume) { v.Driver = "none.cleat" })},
		{"target on the node", ReasonTargetOnNode, "storage target", volume(func(v *Volume) { v.OnNode = true })},
		{"hostPath", ReasonHostPathVolume, "pv-1 (hostPath)", func(o *Observation) {
			o.Config.Coverage, o.Volumes[0].Plugin, o.Volumes[0].Cluster = []Rule{{Driver: "hostPath", Cluster: "/x", Local: true}}, "hostPath", "/data"
		}},
		{"local", ReasonHostPathVolume, "pv-1 (local)", volume(func(v *Volume) { v.Plugin = "local" })},
		{"cluster unknown", ReasonVolumeUnknown, "pv-1 (rbd)", volume(func(v *Volume) { v.Driver, v.Cluster, v.NoObject = "rbd", "", true })},
		{"source", ReasonSourceUnavailable, "refused", func(o *Observation) { o.Unavailable = []string{"backend ceph: refused"} }},
		{"no boot id", ReasonMachineUnknown, "bootID", func(o *Observation) { o.Node.Machine.BootID = "" }},
		{"no machine id", ReasonMachineUnknown, "machineID", func(o *Observation) { o.Node.Machine.MachineID = "" }},
		{"another node's address", ReasonAddressProtected, "node node-8", clients(func(c *Client) { c.Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.8")} })},
		{"virtual address", ReasonAddressProtected, "services", clients(func(c *Client) { c.Addresses = append(c.Addresses, netip.MustParseAddr("10.96.0.1")) })},
		{"block", ReasonAddressRejected, "192.0.2.0/24", clients(func(c *Client) { c.Rejected = []string{"192.0.2.0/24"} })},
		{"loopback", ReasonAddressRejected, "127.0.0.1", clients(func(c *Client) { c.Addresses = []netip.Addr{netip.MustParseAddr("127.0.0.1")} })},
		{"4in6", ReasonAddressRejected, "::ffff", clients(func(c *Client) { c.Addresses = []netip.Addr{netip.MustParseAddr("::ffff:192.0.2.7")} })},
		{"no record", ReasonNoClientRecord, "ceph", clients(func(c *Client) { c.Source = FromNode })},
		{"report of the node only", ReasonNoClientRecord, "ceph", clients(func(c *Client) { c.Source = FromReport })},
		{"no address", ReasonNoClientRecord, "ceph", clients(func(c *Client) { c.Addresses = nil })},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := lost()
			c.change(&o)
			got := kinds(run(t, &o))
			s := o.Remediation.Status
			if diff := cmp.Diff([]string{"AddFinalizer", "ClaimNode"}, got); diff != "" || s.Intent != nil {
				t.Errorf("actions (-want +got):\n%s, intent %v", diff, s.Intent)
			}
			blocked := s.condition(Blocked)
			if blocked.Status != "True" || blocked.Reason != c.reason || !strings.Contains(blocked.Message, c.message) {
				t.Errorf("condition %+v; want %s with %q", blocked, c.reason, c.message)
			}
			// Nothing was fenced: a deleted remediation ends, the cordon too.
			o.Remediation.Deleting = true
			if got := kinds(run(t, &o)); !cmp.Equal(got, []string{"LeaveNode", "RemoveFinalizer"}) || o.Node.Unschedulable {
				t.Errorf("after deletion: %v", got)
			}
		})
	}
}

func TestCovered(t *testing.T) {
	for _, c := range []struct {
		name     string
		change   func(*Observation)
		backends []string
	}{
		{"rule of the cluster", func(o *Observation) { o.Volumes[0].Cluster, o.Clients[0].Backend = "b", "" }, []string{"ceph-b"}},
		{"rule of the driver", func(o *Observation) { o.Volumes[0].Cluster = "c" }, []string{"ceph"}},
		{"node addresses as configured", func(o *Observation) {
			o.Volumes[0].Cluster = "b"
			o.Clients[0].Source, o.Clients[0].Backend = FromNode, ""
		}, []string{"ceph-b"}},
		{"grant without a volume", func(o *Observation) { o.Volumes = nil }, []string{"ceph"}},
		{"local", func(o *Observation) {
			o.Volumes[0] = Volume{Name: "pv-1", Plugin: "csi", Driver: "local.cleat", Inline: true, NoAttachment: true}
			o.Clients = nil
		}, nil},
		{"path of the host", func(o *Observation) { o.Volumes[0], o.Clients = Volume{Name: "pv-1", Plugin: "hostPath"}, nil }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := lost()
			c.change(&o)
			run(t, &o)
			var got []string
			for _, p := range o.Remediation.Status.Certificate.Proofs {
				got = append(got, p.Backend)
			}
			if !cmp.Equal(got, c.backends) {
				t.Errorf("fenced at %v, want %v", got, c.backends)
			}
		})
	}
}

// What brakes, before and after the intent: nothing is done but the condition.
func TestBrakes(t *testing.T) {
	inProgress := Other{Name: "other", UID: "z", Created: begin, Node: "node-8", Status: Status{Intent: &Intent{}}}
	for _, c := range []struct {
		name, reason string
		change       func(*Observation)
		intent       bool // it brakes then too
	}{
		{"paused", ReasonPaused, func(o *Observation) { o.Remediation.Paused = true }, true},
		{"timed out", ReasonTimedOut, func(o *Observation) { o.Remediation.TimedOut = true }, true},
		{"Ready", ReasonNodeReady, func(o *Observation) { o.Node.Ready = true }, true},
		{"replaced", ReasonNodeReplaced, func(o *Observation) { o.Node.Machine.SystemUUID = "other" }, true},
		{"excluded", ReasonNodeExcluded, func(o *Observation) { o.Node.Excluded = true }, false},
		{"too many", ReasonTooMany, func(o *Observation) { o.Others = []Other{inProgress} }, false},
		{"another remediation fenced", ReasonOtherRemediation, func(o *Observation) {
			o.Others = []Other{inProgress}
			o.Others[0].Node = "node-7"
		}, false},
		{"an older remediation", ReasonOtherRemediation, func(o *Observation) {
			o.Others = []Other{{Name: "older", UID: "a", Created: begin.Add(-time.Second), Node: "node-7", Status: Status{Intent: o.Remediation.Status.Intent}}}
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := lost()
			until(t, &o, recorded)
			c.change(&o)
			if got := run(t, &o); len(got) > 0 || o.Remediation.Status.Intent != nil || o.Remediation.Status.condition(Processing).Reason != c.reason {
				t.Errorf("before the intent: %v, %+v", kinds(got), o.Remediation.Status.Conditions)
			}
			o = lost()
			until(t, &o, intended)
			c.change(&o)
			got := run(t, &o)
			if (len(got) == 0) != c.intent {
				t.Errorf("after the intent: %v, %+v", kinds(got), o.Remediation.Status.Conditions)
			}
			if failed := o.Remediation.Status.condition(Succeeded).Status == "False"; failed != (c.reason == ReasonTimedOut) {
				t.Errorf("Succeeded %+v", o.Remediation.Status.condition(Succeeded))
			}
		})
	}
}

func TestNoLeader(t *testing.T) {
	o := lost()
	for _, lease := range []Lease{{Held: false, Term: 9}, {Held: true, Term: 1}} {
		o.Lease = lease
		o.Remediation.Status.Term = 2
		if step := Next(o); len(step.Actions) > 0 || !reflect.DeepEqual(step.Status, o.Remediation.Status) {
			t.Errorf("%+v: %+v", lease, step)
		}
	}
}

// Each machine of the record needs its own proof.
func TestReturn(t *testing.T) {
	dpu := Machine{"node-7-dpu", "dm", "ds", "dboot-1"}
	for _, c := range []struct {
		name    string
		change  func(*Observation)
		release bool
	}{
		{"nothing", func(*Observation) {}, false},
		{"the host booted", func(o *Observation) { o.Node.Machine.BootID = "boot-2" }, false},
		{"the DPU booted", func(o *Observation) { o.DPUs[0].BootID = "dboot-2" }, false},
		{"both booted", func(o *Observation) { o.Node.Machine.BootID, o.DPUs[0].BootID = "boot-2", "dboot-2" }, true},
		{"another DPU", func(o *Observation) {
			o.Node.Machine.BootID = "boot-2"
			o.DPUs[0] = Machine{"node-7-dpu", "other", "ds", "dboot-2"}
		}, false},
		{"no boot id of the host", func(o *Observation) { o.Node.Machine.BootID, o.DPUs[0].BootID = "", "dboot-2" }, false},
		{"the host booted, an administrator confirms the DPU", func(o *Observation) {
			o.Node.Machine.BootID = "boot-2"
			o.Remediation.Off = &Off{o.Remediation.Status.Record.Digest, []string{"node-7-dpu"}}
		}, true},
		{"an administrator confirms both, without a Node object", func(o *Observation) {
			o.Node = nil
			o.Remediation.Off = &Off{o.Remediation.Status.Record.Digest, []string{"node-7-dpu", "node-7"}}
		}, true},
		{"an administrator confirms one", func(o *Observation) {
			o.Remediation.Off = &Off{o.Remediation.Status.Record.Digest, []string{"node-7"}}
		}, false},
		{"an administrator confirms another record", func(o *Observation) { o.Remediation.Off = &Off{"sha256:0", []string{"node-7-dpu", "node-7"}} }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := lost()
			o.DPUs = []Machine{dpu}
			run(t, &o)
			c.change(&o)
			got := kinds(run(t, &o))
			if released := len(got) > 0 && got[0] == "Unfence"; released != c.release {
				t.Errorf("actions %v", got)
			}
		})
	}
}

// A machine that booted before the taint stops the takeover: what its new boot
// has in use is not recorded.
func TestBootBeforeTaint(t *testing.T) {
	o := lost()
	o.DPUs = []Machine{{"node-7-dpu", "dm", "ds", "dboot-1"}}
	until(t, &o, certified)
	o.DPUs[0].BootID = "dboot-2"
	if got := run(t, &o); len(got) > 0 || o.Node.OutOfService != nil {
		t.Errorf("actions %v", kinds(got))
	}
}

// Before the intent it is recorded with its new boot.
func TestBootBeforeIntent(t *testing.T) {
	o := lost()
	o.DPUs = []Machine{{"node-7-dpu", "dm", "ds", "dboot-1"}}
	until(t, &o, recorded)
	o.DPUs[0].BootID, o.Volumes = "dboot-2", nil
	run(t, &o)
	record := o.Remediation.Status.Record
	if o.Node.OutOfService == nil || record.Machines[1].BootID != "dboot-2" || len(record.Volumes) != 1 {
		t.Errorf("%+v", record)
	}
}

// What appears after the certificate is recorded, fenced and certified before
// the taint.
func TestNewFacts(t *testing.T) {
	second := netip.MustParseAddr("2001:db8::7")
	for _, c := range []struct {
		name    string
		change  func(*Observation)
		targets []Target
	}{
		{"volume", func(o *Observation) {
			o.Volumes = []Volume{{Name: "pv-2", Plugin: "csi", Driver: "rbd", Cluster: "b"}}
		}, []Target{{"ceph", []netip.Addr{address}}, {"ceph-b", []netip.Addr{address}}}},
		{"address", func(o *Observation) { o.Clients[0].Addresses = []netip.Addr{second} }, []Target{{"ceph", []netip.Addr{address, second}}}},
		{"an administrator lifts the fence", func(o *Observation) { o.ReadBacks = nil }, []Target{{"ceph", []netip.Addr{address}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := lost()
			o.Clients[0].Source, o.Clients[0].Backend = FromStorageNetwork, ""
			until(t, &o, certified)
			c.change(&o)
			got := kinds(run(t, &o))
			want := []string{"Fence", "TaintNode", "DeletePods"}
			if len(c.targets) > 1 {
				want = append([]string{"Fence"}, want...)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("actions (-want +got):\n%s", diff)
			}
			s := o.Remediation.Status
			if err := s.Verify(); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(c.targets, s.Intent.Targets, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Errorf("targets (-want +got):\n%s", diff)
			}
		})
	}
}

// Fences of others hold a takeover or a release with a condition, and the backend
// is asked all the same: it can withdraw a fence that is no proof any more.
func TestOtherFences(t *testing.T) {
	o := lost()
	until(t, &o, intended)
	o.ReadBacks = []ReadBack{{Backend: "ceph", Intent: o.Remediation.Status.Intent.Digest, FenceBlocked: "unfenced by another"}}
	blocked := func(action, message string) {
		t.Helper()
		step := Next(o)
		c := step.Status.condition(Blocked)
		if got := kinds(step.Actions); !cmp.Equal(got, []string{action}) || c.Status != "True" || c.Reason != ReasonOtherFence || !strings.Contains(c.Message, message) || step.Status.Certificate != nil {
			t.Errorf("actions %v, condition %+v", got, c)
		}
	}
	blocked("Fence", "ceph: unfenced by another")
	o.Node.Machine.BootID = "boot-2"
	o.Remediation.Status = Next(o).Status
	o.ReadBacks[0] = ReadBack{Backend: "ceph", Recorded: []netip.Addr{address}, UnfenceBlocked: "fenced by another"}
	blocked("Unfence", "ceph: fenced by another")
}

// Records that are gone prove nothing: a release ends once it was read that no fence is
// left, and the status has that before the proof is removed.
func TestReleaseNeedsProof(t *testing.T) {
	o := lost()
	until(t, &o, intended)
	o.Node.Machine.BootID = "boot-2"
	o.Remediation.Status = Next(o).Status
	intent := o.Remediation.Status.Intent.Digest
	next := func(action string, read ReadBack) {
		t.Helper()
		read.Backend, read.Intent = "ceph", intent
		o.ReadBacks = []ReadBack{read}
		step := Next(o)
		if len(o.Remediation.Status.Release.Lifted) != len(step.Status.Release.Lifted) { // written first
			o.Remediation.Status = step.Status
			step = Next(o)
		}
		if got := kinds(step.Actions); !cmp.Equal(got, []string{action}) {
			t.Errorf("after %+v: %v, want %s", read, got, action)
		}
	}
	next("Unfence", ReadBack{})
	next("Unfence", ReadBack{Recorded: []netip.Addr{address}, Missing: "no result"})
	if c := o.Remediation.Status.condition(Processing); c.Reason != ReasonReleasing {
		t.Errorf("%+v", c)
	}
	next("Forget", ReadBack{Recorded: []netip.Addr{address}, Lifted: true, UnfenceBlocked: "another"})
	next("LeaveNode", ReadBack{})
	next("Unfence", ReadBack{Err: "no answer"})
	next("Unfence", ReadBack{Recorded: []netip.Addr{address}}) // a late fence
	next("Unfence", ReadBack{})
	next("LeaveNode", ReadBack{Lifted: true})
}

// An administrator's cordon and taint stay.
func TestAdministratorsMarks(t *testing.T) {
	o := lost()
	value := "nodeshutdown"
	o.Node.Unschedulable, o.Node.OutOfService = true, &value
	if got := kinds(run(t, &o)); !cmp.Equal(got, []string{"AddFinalizer", "ClaimNode", "Fence", "DeletePods"}) {
		t.Errorf("takeover %v", got)
	}
	o.Node.Machine.BootID = "boot-2"
	run(t, &o)
	if !o.Node.Unschedulable || o.Node.OutOfService == nil || o.Remediation.Finalizer {
		t.Errorf("%+v", o.Node)
	}
}

func TestSecondLeader(t *testing.T) {
	o := lost()
	until(t, &o, certified)
	o.Lease.Term = 2
	if got := kinds(run(t, &o)); !cmp.Equal(got, []string{"ClaimNode", "TaintNode", "DeletePods"}) {
		t.Errorf("actions %v", got)
	}
	if o.Remediation.Status.Term != 2 || o.Node.Claim.Term != 2 || !o.Node.Claim.Cordoned {
		t.Errorf("%+v, %+v", o.Remediation.Status.Term, o.Node.Claim)
	}
}
