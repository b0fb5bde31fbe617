package request

import (
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
