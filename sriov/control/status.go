package control

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/types/known/timestamppb"

	controlv1 "github.com/cleatproject/cleat/api/sriovdp/control/v1"
	"github.com/cleatproject/cleat/sriov/gate"
)

// maxText limits an error text in bytes.
const maxText = 4 << 10

var (
	states = map[gate.State]controlv1.DevicePluginStatus_State{
		gate.Initializing: controlv1.DevicePluginStatus_INITIALIZING,
		gate.Serving:      controlv1.DevicePluginStatus_SERVING,
		gate.Failed:       controlv1.DevicePluginStatus_ERROR,
		gate.Stopping:     controlv1.DevicePluginStatus_STOPPING,
	}
	holdings = map[gate.HolderState]controlv1.Control{
		gate.NotControlled: controlv1.Control_CONTROL_NONE,
		gate.Waiting:       controlv1.Control_CONTROL_WAITING,
		gate.Live:          controlv1.Control_CONTROL_HELD,
		gate.Lost:          controlv1.Control_CONTROL_HOLDING,
	}
	phases = map[gate.Phase]controlv1.ResourceState{
		gate.Idle:        controlv1.ResourceState_RESOURCE_STATE_IDLE,
		gate.Offered:     controlv1.ResourceState_RESOURCE_STATE_OFFERED,
		gate.Withdrawing: controlv1.ResourceState_RESOURCE_STATE_WITHDRAWING,
		gate.Withdrawn:   controlv1.ResourceState_RESOURCE_STATE_WITHDRAWN,
		gate.Stopped:     controlv1.ResourceState_RESOURCE_STATE_STOPPED,
	}
)

// A state that the contract lacks becomes ERROR, never UNKNOWN.
func messageOf(s gate.Status, session string) *controlv1.DevicePluginStatus {
	m := &controlv1.DevicePluginStatus{
		State: states[s.State], ResourcePoolCount: clampInt32(s.Pools), DeviceCount: clampInt32(s.Devices),
		ServingGeneration: s.Generation, ErrorMessage: text(s.Error),
		Session: session, NodeStateUid: text(s.UID), ConfigHash: text(s.Hash), Control: holdings[s.Holding],
		LeaseExpires: timestampOf(s.LeaseEnds), HoldEnds: timestampOf(s.HoldEnds),
		ClosedFunctions: closedMessages(s.Closed), ClosedWithdrawn: s.Withdrawn,
	}
	if m.State == controlv1.DevicePluginStatus_UNKNOWN {
		m.State = controlv1.DevicePluginStatus_ERROR
		m.ErrorMessage = text(strings.TrimSpace(fmt.Sprintf("the plugin is in the unknown state %q %s", s.State, s.Error)))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Resources)) {
		r := s.Resources[name]
		m.Resources = append(m.Resources, &controlv1.ResourceStatus{
			Name: text(name), State: phases[r.Phase], DeviceCount: clampInt32(r.Devices), OfferedCount: clampInt32(r.Offered),
			Allocating: clampInt32(r.Allocating), KubeletConnected: r.Streaming, ErrorMessage: text(r.Error),
		})
	}
	return m
}

// A plugin without the extensions sends neither holder nor resources. Unknown
// values become empty.
func statusOf(m *controlv1.DevicePluginStatus) gate.Status {
	s := gate.Status{
		State: valueOf(states, m.GetState()), Holding: valueOf(holdings, m.GetControl()),
		Pools: int(m.GetResourcePoolCount()), Devices: int(m.GetDeviceCount()), Generation: m.GetServingGeneration(),
		UID: m.GetNodeStateUid(), Hash: m.GetConfigHash(), Error: m.GetErrorMessage(),
		LeaseEnds: timeOf(m.GetLeaseExpires()), HoldEnds: timeOf(m.GetHoldEnds()), Resources: map[string]gate.Report{},
		Closed: closedOf(m.GetClosedFunctions()), Withdrawn: m.GetClosedWithdrawn(),
	}
	for _, r := range m.GetResources() {
		s.Resources[r.GetName()] = gate.Report{
			Phase: valueOf(phases, r.GetState()), Devices: int(r.GetDeviceCount()), Offered: int(r.GetOfferedCount()),
			Allocating: int(r.GetAllocating()), Streaming: r.GetKubeletConnected(), Error: r.GetErrorMessage(),
		}
	}
	return s
}

func closedMessages(c gate.Closed) (all []*controlv1.ClosedFunction) {
	for _, address := range slices.Sorted(maps.Keys(c)) {
		all = append(all, &controlv1.ClosedFunction{Address: address, Reason: line(c[address])})
	}
	return all
}

func closedOf(list []*controlv1.ClosedFunction) gate.Closed {
	if len(list) == 0 {
		return nil
	}
	c := gate.Closed{}
	for _, f := range list {
		c[f.GetAddress()] = f.GetReason()
	}
	return c
}

func disableResponseOf(d gate.Withdrawal) *controlv1.DisableDevicesResponse {
	m := &controlv1.DisableDevicesResponse{KubeletConfirmed: d.Confirmed}
	for _, h := range d.InUse {
		m.InUse = append(m.InUse, &controlv1.DeviceInUse{
			ResourceName: text(h.Resource), Id: text(h.ID), PodNamespace: text(h.Namespace), PodName: text(h.Pod), ContainerName: text(h.Container),
		})
	}
	return m
}

func inUseOf(m *controlv1.DisableDevicesResponse) []gate.Held {
	var all []gate.Held
	for _, d := range m.GetInUse() {
		all = append(all, gate.Held{Resource: d.GetResourceName(), ID: d.GetId(), Namespace: d.GetPodNamespace(), Pod: d.GetPodName(), Container: d.GetContainerName()})
	}
	return all
}

func valueOf[V, N comparable](values map[V]N, number N) V {
	for v, n := range values {
		if n == number {
			return v
		}
	}
	var none V
	return none
}

func clampInt32(n int) int32 { return int32(min(max(n, 0), math.MaxInt32)) }

// text returns valid UTF-8 of limited length.
func text(s string) string { return shorten(s, maxText) }

// line returns a reason without control characters.
func line(s string) string {
	return shorten(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s), maxReason)
}

func shorten(s string, most int) string {
	if s = strings.ToValidUTF8(s, "\uFFFD"); len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most-len("…")], "") + "…"
}

func timestampOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
