package request

import (
	"errors"
	"net/netip"

	addons "github.com/csi-addons/spec/lib/go/fence"

	fencev1 "github.com/cleatproject/cleat/api/fence/v1"
	"github.com/cleatproject/cleat/volume"
)

// CoverageBlocks checks a GetCoverageRequest; without blocks it concerns all
// recorded fences.
func CoverageBlocks(r *fencev1.GetCoverageRequest) ([]netip.Prefix, error) {
	if len(r.GetCidrs()) == 0 {
		return nil, nil
	}
	cidrs := make([]*addons.CIDR, len(r.GetCidrs()))
	for i, text := range r.GetCidrs() {
		cidrs[i] = &addons.CIDR{Cidr: text}
	}
	return blocks(cidrs)
}

// CoverageResponse is the inverse of Coverage, except for the IDs of sessions,
// which have a meaning only for their server.
func CoverageResponse(all []volume.Coverage) *fencev1.GetCoverageResponse {
	out := &fencev1.GetCoverageResponse{}
	for _, c := range all {
		out.Enforcers = append(out.Enforcers, &fencev1.EnforcerCoverage{
			Enforcer: c.Enforcer, Servers: toServers(c.Servers), Sessions: toSessions(c.Sessions), Unprotected: toSessions(c.Unprotected),
			Forwarded: toSessions(c.Forwarded), Others: toSessions(c.Others), Uncovered: toServers(c.Uncovered), Unfenced: toServers(c.Unfenced),
			Problems: c.Problems,
		})
	}
	return out
}

// Coverage converts a GetCoverageResponse.
func Coverage(r *fencev1.GetCoverageResponse) (all []volume.Coverage) {
	for _, c := range r.GetEnforcers() {
		all = append(all, volume.Coverage{
			Enforcer: c.GetEnforcer(), Servers: servers(c.GetServers()), Sessions: sessions(c.GetSessions()), Unprotected: sessions(c.GetUnprotected()),
			Forwarded: sessions(c.GetForwarded()), Others: sessions(c.GetOthers()), Uncovered: servers(c.GetUncovered()), Unfenced: servers(c.GetUnfenced()),
			Problems: c.GetProblems(),
		})
	}
	return all
}

func toServers(all []volume.Listener) (out []*fencev1.Server) {
	for _, l := range all {
		out = append(out, &fencev1.Server{Address: addressText(l.Address), Holder: l.Holder})
	}
	return out
}

func servers(all []*fencev1.Server) []volume.Listener {
	out := make([]volume.Listener, len(all))
	for i, l := range all {
		out[i] = volume.Listener{Address: addrPort(l.GetAddress()), Holder: l.GetHolder()}
	}
	return out
}

func toSessions(all []volume.Session) (out []*fencev1.Session) {
	for _, s := range all {
		out = append(out, &fencev1.Session{Client: addressText(s.Client), Server: addressText(s.Server), Holder: s.Holder})
	}
	return out
}

func sessions(all []*fencev1.Session) (out []volume.Session) {
	for _, s := range all {
		out = append(out, volume.Session{Client: addrPort(s.GetClient()), Server: addrPort(s.GetServer()), Holder: s.GetHolder()})
	}
	return out
}

// addressText is empty for an unknown address.
func addressText(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func addrPort(text string) netip.AddrPort {
	a, _ := netip.ParseAddrPort(text)
	return a
}

// RecordedClientsResponse is the inverse of RecordedClients.
func RecordedClientsResponse(all []volume.RecordedClient) *fencev1.ListRecordedClientsResponse {
	out := &fencev1.ListRecordedClientsResponse{}
	for _, c := range all {
		out.Clients = append(out.Clients, &fencev1.RecordedClient{Node: c.Node, Addresses: addrTexts(c.Addrs), FormerAddresses: addrTexts(c.Former)})
	}
	return out
}

// RecordedClients converts a ListRecordedClientsResponse. Invalid: an address that
// cannot be read, since a client without it would be fenced in part.
func RecordedClients(r *fencev1.ListRecordedClientsResponse) ([]volume.RecordedClient, error) {
	all := make([]volume.RecordedClient, len(r.GetClients()))
	for i, c := range r.GetClients() {
		addrs, err := parseAddrs(c.GetAddresses())
		former, formerErr := parseAddrs(c.GetFormerAddresses())
		if err := errors.Join(err, formerErr); err != nil {
			return nil, invalidf("client of node %q: %s", c.GetNode(), err)
		}
		all[i] = volume.RecordedClient{Client: volume.Client{Node: c.GetNode(), Addrs: addrs}, Former: former}
	}
	return all, nil
}

func addrTexts(all []netip.Addr) []string {
	texts := make([]string, len(all))
	for i, a := range all {
		texts[i] = a.String()
	}
	return texts
}

func parseAddrs(texts []string) ([]netip.Addr, error) {
	var all []netip.Addr
	for _, text := range texts {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}
