package control

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	controlv1 "github.com/cleatproject/cleat/api/sriovdp/control/v1"
	"github.com/cleatproject/cleat/sriov/gate"
)

// Bounds of a request. Its texts appear in logs and in the status.
const (
	maxNode    = 253 // bytes, of a node's name in Kubernetes
	maxUID     = 128
	maxHash    = 256
	maxSession = 64

	// MinLease is the shortest lease. With a shorter one a busy machine would lose
	// devices whose holder is alive.
	MinLease = time.Second
	MaxLease = time.Hour
	MaxHold  = time.Hour
)

// claimOf reads a request of EnableDevices. Errors are *End with InvalidArgument.
// Generation 0, which no node state has, is accepted: a peer that does not know
// the generation sends it.
func claimOf(r *controlv1.EnableDevicesRequest) (gate.Claim, error) {
	c := gate.Claim{UID: r.GetNodeStateUid(), Generation: r.GetNodeStateGeneration(), Hash: r.GetConfigHash(), Node: r.GetNodeName()}
	if c.Generation < 0 {
		return gate.Claim{}, invalid("node_state_generation %d is negative; it is metadata.generation of the node state, 0 where that is not known", c.Generation)
	}
	for _, of := range []struct {
		field, value string
		most         int
	}{{"node_name", c.Node, maxNode}, {"node_state_uid", c.UID, maxUID}, {"config_hash", c.Hash, maxHash}} {
		if err := checkWord(of.field, of.value, of.most); err != nil {
			return gate.Claim{}, err
		}
	}
	var err error
	if c.Lease, err = span("lease_duration", r.GetLeaseDuration(), MinLease, MaxLease); err != nil {
		return gate.Claim{}, err
	}
	if c.Hold, err = span("hold_time", r.GetHoldTime(), 0, MaxHold); err != nil {
		return gate.Claim{}, err
	}
	return c, nil
}

// checkWord accepts printable ASCII without spaces, which is safe in logs.
func checkWord(field, value string, most int) error {
	if len(value) > most {
		return invalid("%s has %d bytes, %d are possible: %.40q...", field, len(value), most, value)
	}
	if strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return invalid("%s is %q; only letters, digits and punctuation of ASCII are possible", field, value)
	}
	return nil
}

// span reads a duration; unset and 0 mean none.
func span(field string, d *durationpb.Duration, least, most time.Duration) (time.Duration, error) {
	if d == nil {
		return 0, nil
	}
	if err := d.CheckValid(); err != nil {
		return 0, invalid("%s is no duration: %v", field, err)
	}
	value := d.AsDuration()
	if value != 0 && (value < least || value > most) {
		return 0, invalid("%s is %s; it can be from %s to %s, or left out", field, value, least, most)
	}
	return value, nil
}

// checkSession checks the form of a session. Another implementation of the
// contract may have made it.
func checkSession(session string, required bool) error {
	if session == "" && required {
		return invalid("session is empty; it is in each status of the stream of EnableDevices")
	}
	return checkWord("session", session, maxSession)
}

func invalid(format string, args ...any) error {
	return &End{Code: codes.InvalidArgument, Reason: fmt.Sprintf(format, args...)}
}
