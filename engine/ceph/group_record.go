//go:build ceph

package ceph

import (
	"cmp"
	"encoding/json"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// groupsObject has the groups of snapshots of a pool: keys of its omap are hashes
// of names, values groupRecords.
const groupsObject = "cleat-groups"

// groupRecord is written before anything of the group exists, and removed last.
type groupRecord struct {
	UUID    string      `json:"uuid"` // of the creation
	Name    string      `json:"name"`
	Sources []volume.ID `json:"sources"` // sorted
	// Ready is false until the group is complete, and from its deletion on.
	Ready bool `json:"ready,omitempty"`
}

func (p *pool) writeGroup(id groupID, r groupRecord) error {
	return explain(p.io.SetOmap(groupsObject, map[string][]byte{id.hash: []byte(encode(r))}), "write object %s in pool %s", groupsObject, p.name)
}

func (p *pool) dropGroup(id groupID) error {
	return explain(ignoreMissing(p.io.RmOmapKeys(groupsObject, []string{id.hash})), "write object %s in pool %s", groupsObject, p.name)
}

// groupWith returns the record of the group with a hash of a name; nil: it does
// not exist.
func (p *pool) groupWith(hash string) (groupID, *groupRecord, error) {
	all, err := p.io.GetOmapValues(groupsObject, "", hash, 1)
	if ignoreMissing(err) != nil {
		return groupID{}, nil, explain(err, "read object %s in pool %s", groupsObject, p.name)
	}
	text, ok := all[hash]
	if !ok {
		return groupID{}, nil, nil
	}
	id, r, err := p.decodeGroup(hash, text)
	return id, &r, err
}

func (p *pool) decodeGroup(hash string, text []byte) (groupID, groupRecord, error) {
	var r groupRecord
	if err := json.Unmarshal(text, &r); err != nil {
		return groupID{}, r, errs.Errorf(errs.Internal, "object %s in pool %s: the record of group %s was not written by this program: %w", groupsObject, p.name, hash, err)
	}
	return groupID{pool: p.id, hash: hash, uuid: r.UUID}, r, nil
}

// groups returns all groups of a pool.
func (p *pool) groups() (map[groupID]groupRecord, error) {
	texts, err := p.io.GetAllOmapValues(groupsObject, "", "", pageSize)
	if ignoreMissing(err) != nil {
		return nil, explain(err, "read object %s in pool %s", groupsObject, p.name)
	}
	all := map[groupID]groupRecord{}
	for hash, text := range texts {
		id, r, err := p.decodeGroup(hash, text)
		if err != nil {
			return nil, err
		}
		all[id] = r
	}
	return all, nil
}

// groupNamed returns the group with a name; nil: it does not exist.
func (e *Engine) groupNamed(name string) (groupID, *groupRecord, error) {
	for _, p := range e.pools {
		if id, r, err := p.groupWith(hash(name)); err != nil || r != nil {
			return id, r, err
		}
	}
	return groupID{}, nil, nil
}

// group returns the record of a group, which can be incomplete. NotFound: it does
// not exist.
func (e *Engine) group(id groupID) (groupRecord, error) {
	p, err := e.poolOf(id.pool, id.String())
	if err != nil {
		return groupRecord{}, err
	}
	found, r, err := p.groupWith(id.hash)
	if err != nil {
		return groupRecord{}, err
	}
	if r == nil || found != id {
		return groupRecord{}, cmp.Or(p.notInNamespace("group "+id.String(), func(p *pool) (bool, error) {
			found, r, err := p.groupWith(id.hash)
			return r != nil && found == id, err
		}), noGroup(id.String()))
	}
	return *r, nil
}
