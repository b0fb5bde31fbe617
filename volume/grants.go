package volume

import (
	"context"
	"net/netip"
	"slices"
	"time"
)

// Grant is the right of one client to use one volume.
type Grant struct {
	Volume   ID     `json:"volume"`
	Client   Client `json:"client"`
	ReadOnly bool   `json:"readOnly,omitempty"`
	// NameOnly: the node was named without addresses, also if Client has those
	// of an earlier record. It is ignored in comparisons.
	NameOnly bool `json:"nameOnly,omitempty"`
	// Revoking is when a revocation began: the storage admits the client no more,
	// or is being made to. The grant still keeps other nodes out, and a fence of
	// the client still covers the volume. Zero: it is not being revoked.
	Revoking time.Time `json:"revoking,omitzero"`
	// Mode is an access mode of CSI with "/block" or "/mount".
	Mode    string    `json:"mode"`
	Granted time.Time `json:"granted"` // ignored in comparisons
}

// Grants reads which clients are to have volumes. It is a reader, not a value: each
// call reads the record, which other processes change too.
//
// An engine that admits clients holds a lock of the volume, reads, makes its storage
// admit exactly these clients, and reads again until the answer is the one that it
// has acted on. After an error no client is admitted.
type Grants interface {
	// Admitted returns the clients that the storage should admit to a volume, sorted
	// by node: those with a grant that is not being revoked, and that no fence covers.
	Admitted(ctx context.Context, id ID) ([]Client, error)
	// Records returns all that is recorded, of one moment.
	Records(ctx context.Context) (Records, error)
	// Learn adds addresses from which a node is connected to its record, so that
	// fences of them cover the node.
	Learn(ctx context.Context, node string, addrs []netip.Addr) error
}

// Records is what is recorded about clients, of one moment.
type Records struct {
	// Fenced are the blocks of all fences that are to be enforced, in order. They can
	// overlap.
	Fenced []netip.Prefix
	// Grants are sorted by volume and node.
	Grants []RecordedGrant
	// Clients are sorted by node.
	Clients []RecordedClient
	// Instances are sorted by volume.
	Instances []Instance
}

// RecordedGrant is a grant, and what fences say about its client.
type RecordedGrant struct {
	// Grant has the addresses of the record of the client if the node was named
	// without, or is fenced.
	Grant
	// Fenced are the blocks of Records.Fenced with an address of the client, also a
	// former one.
	Fenced []netip.Prefix
}

// IsAdmitted reports whether the storage should admit the client.
func (g RecordedGrant) IsAdmitted() bool { return len(g.Fenced) == 0 && g.Revoking.IsZero() }

// RecordedClient is a client as last seen.
type RecordedClient struct {
	Client
	Former []netip.Addr // earlier addresses, which fences of them still cover
}

func (c RecordedClient) isIn(contains func(netip.Addr) bool) bool {
	return slices.ContainsFunc(c.Addrs, contains) || slices.ContainsFunc(c.Former, contains)
}

// Admitted returns the grants of a volume whose clients the storage should admit.
func (r Records) Admitted(id ID) (admitted []RecordedGrant) {
	for _, g := range r.Of(id) {
		if g.IsAdmitted() {
			admitted = append(admitted, g)
		}
	}
	return admitted
}

// Of returns the grants of a volume.
func (r Records) Of(id ID) []RecordedGrant {
	compare := func(g RecordedGrant, id ID) int {
		switch {
		case g.Volume < id:
			return -1
		case g.Volume > id:
			return 1
		}
		return 0
	}
	from, _ := slices.BinarySearchFunc(r.Grants, id, compare)
	end := from
	for end < len(r.Grants) && r.Grants[end].Volume == id {
		end++
	}
	return r.Grants[from:end]
}

// ClientsIn returns the clients with an address, also a former one, in a set.
func (r Records) ClientsIn(contains func(netip.Addr) bool) (clients []Client) {
	for _, c := range r.Clients {
		if c.isIn(contains) {
			clients = append(clients, c.Client)
		}
	}
	return clients
}

// InstancesIn returns the instances at addresses in a set, and at any address of a
// client that has one in the set.
func (r Records) InstancesIn(contains func(netip.Addr) bool) (instances []Instance) {
	at := map[netip.Addr]bool{}
	for _, c := range r.Clients {
		if c.isIn(contains) {
			for _, a := range slices.Concat(c.Addrs, c.Former) {
				at[a] = true
			}
		}
	}
	for _, i := range r.Instances {
		if contains(i.Addr) || at[i.Addr] {
			instances = append(instances, i)
		}
	}
	return instances
}
