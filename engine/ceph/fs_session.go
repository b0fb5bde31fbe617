package ceph

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/engine/ceph/blocklist"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// mdsServer is an active metadata server.
type mdsServer struct {
	Name string
	Rank int
	Addr netip.AddrPort
}

// parseServers returns the active metadata servers of a file system from the
// output of "fs dump". Unavailable: it has none, or one of a rank is missing, so
// that its sessions are unknown.
func parseServers(text []byte, fs string) ([]mdsServer, error) {
	var dump struct {
		Filesystems []struct {
			Map struct {
				Name string           `json:"fs_name"`
				In   []int            `json:"in"`
				Up   map[string]int64 `json:"up"`
				Info map[string]struct {
					Name  string
					Rank  int
					State string
					Addr  string
				}
			} `json:"mdsmap"`
		}
	}
	if err := json.Unmarshal(text, &dump); err != nil {
		return nil, errs.Errorf(errs.Internal, "the list of metadata servers is not JSON: %w", err)
	}
	for _, f := range dump.Filesystems {
		if f.Map.Name != fs {
			continue
		}
		var all []mdsServer
		for _, key := range slices.Sorted(maps.Keys(f.Map.Info)) {
			i := f.Map.Info[key]
			if !slices.Contains(f.Map.In, i.Rank) {
				continue // a standby
			}
			address, _, _ := strings.Cut(i.Addr, "/")
			at, err := netip.ParseAddrPort(address)
			if err != nil {
				return nil, fmt.Errorf("mds.%s: %w", i.Name, err)
			}
			if i.State != "up:active" {
				return nil, errs.Errorf(errs.Unavailable, "mds.%s of file system %s is %s; repeat the call when it is active", i.Name, fs, i.State)
			}
			all = append(all, mdsServer{Name: i.Name, Rank: i.Rank, Addr: at})
		}
		if len(all) == 0 || len(all) < len(f.Map.In) {
			return nil, errs.Errorf(errs.Unavailable, "%d of %d metadata servers of file system %s are up, and clients can have sessions with the others; start them", len(all), len(f.Map.In), fs)
		}
		return all, nil
	}
	return nil, errs.Errorf(errs.Unavailable, "file system %s has no metadata servers", errs.Quote(fs))
}

// parseEpoch returns the number with a key in the output of "osd stat" or of
// the status of a metadata server.
func parseEpoch(text []byte, key string) (uint64, error) {
	var out map[string]json.RawMessage
	err := json.Unmarshal(text, &out)
	epoch, err2 := strconv.ParseUint(string(out[key]), 10, 64)
	if err := cmp.Or(err, err2); err != nil {
		return 0, errs.Errorf(errs.Internal, "the epoch of an OSD map, %s, is unknown: %w", key, err)
	}
	return epoch, nil
}

// fsSession is the session of a client with a metadata server.
type fsSession struct {
	Client blocklist.Watcher
	// Instance is the address of Client as the blocklist has it.
	Instance string
	Root     string // that is mounted
	User     string // without "client."
	Host     string // name of the client's host
	Server   mdsServer
}

// parseSessions parses the output of "session ls".
func parseSessions(text []byte, server mdsServer) ([]fsSession, error) {
	var list []struct {
		ID     uint64
		Entity struct {
			Addr struct {
				Addr  string
				Nonce uint32
			}
		}
		Metadata struct {
			Root, Hostname string
			User           string `json:"entity_id"`
		} `json:"client_metadata"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, errs.Errorf(errs.Internal, "the sessions of mds.%s are not JSON: %w", server.Name, err)
	}
	var all []fsSession
	for _, s := range list {
		instance := fmt.Sprintf("%s/%d", s.Entity.Addr.Addr, s.Entity.Addr.Nonce)
		w, err := blocklist.ParseWatcher(instance)
		if err != nil {
			return nil, fmt.Errorf("session %d of mds.%s: %w", s.ID, server.Name, err)
		}
		w.Client = s.ID
		all = append(all, fsSession{Client: w, Instance: instance, Root: s.Metadata.Root, User: s.Metadata.User, Host: s.Metadata.Hostname, Server: server})
	}
	return all, nil
}

func (s fsSession) String() string {
	return fmt.Sprintf("%s (host %s, client.%d)", s.Client.Addr, errs.Quote(cmp.Or(s.Host, "unknown")), s.Client.Client)
}

// session describes it to a fence. Ceph does not use a client's number again.
func (s fsSession) session() volume.Session {
	return volume.Session{
		ID:     fmt.Sprintf("mds.%s/client.%d", s.Server.Name, s.Client.Client),
		Client: netip.AddrPortFrom(s.Client.Addr, 0), Server: s.Server.Addr,
		Holder: fmt.Sprintf("mds.%s (client.%d)", s.Server.Name, s.Client.Client),
	}
}
