package spdk

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
)

// Secure completes subsystems, by NQN, with what only the saved configuration of the
// process has: the TLS keys of hosts, and which listeners have TLS. Those of one
// address share a socket, so a listener has TLS if all there were added with it. plain
// are the others, of all subsystems of the process.
func (c *Client) Secure(ctx context.Context, subsystems map[string]Subsystem) (plain []NVMeAddress, err error) {
	var config []struct {
		Method string
		Params json.RawMessage
	}
	if err := c.Call(ctx, "framework_get_config", byName{"nvmf"}, &config); err != nil {
		return nil, err
	}
	isSecure, isPlain := map[NVMeAddress]bool{}, map[NVMeAddress]bool{} // of one subsystem; of any
	for _, call := range config {
		var p struct {
			NQN, Host, PSK string
			Address        NVMeAddress `json:"listen_address"`
			TLS            bool        `json:"secure_channel"`
		}
		if call.Method != "nvmf_subsystem_add_host" && call.Method != "nvmf_subsystem_add_listener" {
			continue
		}
		if err := json.Unmarshal(call.Params, &p); err != nil {
			return nil, fmt.Errorf("framework_get_config: %s: %w", call.Method, err)
		}
		switch i := slices.IndexFunc(subsystems[p.NQN].Hosts, func(h AllowedHost) bool { return h.NQN == p.Host }); {
		case i >= 0:
			subsystems[p.NQN].Hosts[i].TLS = p.PSK
		case p.Host != "":
		case p.TLS:
			p.Address.SubNQN = p.NQN
			isSecure[p.Address] = true
		default:
			isPlain[p.Address] = true
			p.Address.SubNQN = p.NQN
			plain = append(plain, p.Address)
		}
	}
	for _, s := range subsystems {
		for i := range s.Listeners {
			own := s.Listeners[i].NVMeAddress
			own.SubNQN = s.NQN
			s.Listeners[i].TLS = isSecure[own] && !isPlain[s.Listeners[i].NVMeAddress]
		}
	}
	return plain, nil
}
