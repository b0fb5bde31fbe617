package ovsdb

import (
	"context"
	"fmt"
)

// Bridge is a bridge in the database.
type Bridge struct {
	// What is wrong with each interface, by name; "": ovs-vswitchd has it.
	Interfaces  map[string]string
	ExternalIDs map[string]string
}

// Bridges returns the bridges by name.
func Bridges(ctx context.Context, socket string) (map[string]Bridge, error) {
	read := func(table string, columns ...string) operation {
		return operation{"op": "select", "table": table, "where": []any{}, "columns": append(columns, "_uuid", "name")}
	}
	r, err := transact(ctx, socket, read("Bridge", "ports", "external_ids"), read("Port", "interfaces"), read("Interface", "ofport", "error"))
	var all map[string]Bridge
	if err == nil {
		all, err = join(r[0].Rows, r[1].Rows, r[2].Rows)
	}
	if err != nil {
		return nil, fmt.Errorf("read the bridges of Open vSwitch at %s: %w", socket, err)
	}
	return all, nil
}

func join(bridges, ports, interfaces []row) (map[string]Bridge, error) {
	name, state := map[reference]string{}, map[reference]string{}
	for _, i := range interfaces {
		wrong, err := stateOf(i)
		if err != nil {
			return nil, err
		}
		name[i.UUID], state[i.UUID] = i.Name, wrong
	}
	of := map[reference][]reference{} // interfaces by port
	for _, p := range ports {
		list, err := values[reference](p.Interfaces)
		if err != nil {
			return nil, err
		}
		of[p.UUID] = list
	}
	all := map[string]Bridge{}
	for _, b := range bridges {
		list, err := values[reference](b.Ports)
		if err != nil {
			return nil, err
		}
		ids, err := mapOf(b.ExternalIDs)
		if err != nil {
			return nil, err
		}
		bridge := Bridge{map[string]string{}, ids}
		for _, p := range list {
			for _, i := range of[p] {
				bridge.Interfaces[name[i]] = state[i]
			}
		}
		all[b.Name] = bridge
	}
	return all, nil
}

// stateOf returns what is wrong with an interface: ovs-vswitchd sets the number of
// its OpenFlow port, or -1 and an error.
func stateOf(i row) (string, error) {
	failed, err := values[string](i.Error)
	if err != nil {
		return "", err
	}
	port, err := values[int](i.OFPort)
	switch {
	case err != nil:
		return "", err
	case len(failed) > 0 && failed[0] != "":
		return failed[0], nil
	case len(port) == 0 || port[0] < 0:
		return "ovs-vswitchd has not opened it: it does not run, or has not seen the change yet", nil
	}
	return "", nil
}

// Config is a bridge with one uplink. Empty texts and maps are the defaults.
type Config struct {
	Name, DatapathType, FailMode string
	ExternalIDs, OtherConfig     map[string]string
	Uplink                       Uplink
}

// Uplink is an interface by which a bridge reaches the network.
type Uplink struct {
	Name, Type                        string
	Options, ExternalIDs, OtherConfig map[string]string
	MTURequest                        int // 0: none
}

// Create creates a bridge and its ports in one transaction. It fails if a bridge or
// port of these names exists: then it changes nothing.
func Create(ctx context.Context, socket string, c Config) error {
	absent := func(table, name string) operation {
		return operation{"op": "wait", "table": table, "where": where("name", name), "columns": []string{"name"}, "until": "==", "rows": []any{}, "timeout": 0}
	}
	insert := func(table, id string, row map[string]any) operation {
		for column, value := range row {
			m, isMap := value.(map[string]string)
			if isMap {
				row[column] = encodeMap(m)
			}
			if value == "" || value == 0 || isMap && len(m) == 0 {
				delete(row, column)
			}
		}
		return operation{"op": "insert", "table": table, "uuid-name": id, "row": row}
	}
	named := func(id string) []string { return []string{"named-uuid", id} }
	u := c.Uplink
	_, err := transact(ctx, socket,
		absent("Bridge", c.Name), absent("Port", c.Name), absent("Port", u.Name), absent("Interface", u.Name),
		insert("Interface", "internal", map[string]any{"name": c.Name, "type": "internal"}),
		insert("Interface", "uplink", map[string]any{"name": u.Name, "type": u.Type, "options": u.Options,
			"external_ids": u.ExternalIDs, "other_config": u.OtherConfig, "mtu_request": u.MTURequest}),
		insert("Port", "internalport", map[string]any{"name": c.Name, "interfaces": named("internal")}),
		insert("Port", "uplinkport", map[string]any{"name": u.Name, "interfaces": named("uplink")}),
		insert("Bridge", "bridge", map[string]any{"name": c.Name, "datapath_type": c.DatapathType, "fail_mode": c.FailMode,
			"external_ids": c.ExternalIDs, "other_config": c.OtherConfig, "ports": []any{"set", []any{named("internalport"), named("uplinkport")}}}),
		change("insert", named("bridge")))
	if err != nil {
		return fmt.Errorf("create the bridge %s of Open vSwitch with the port %s: %w: neither must exist", c.Name, u.Name, err)
	}
	return nil
}

// Delete deletes the bridge with its ports, if it exists and has these external
// ids. It does nothing if no bridge of this name exists.
func Delete(ctx context.Context, socket, name string, ids map[string]string) error {
	r, err := transact(ctx, socket, operation{"op": "select", "table": "Bridge", "where": where("name", name), "columns": []string{"_uuid", "external_ids"}})
	if err == nil && len(r[0].Rows) == 1 {
		b := r[0].Rows[0]
		var has map[string]string
		if has, err = mapOf(b.ExternalIDs); err == nil {
			for key, value := range ids {
				if has[key] != value {
					return fmt.Errorf("delete the bridge %s of Open vSwitch: its external id %s is %q, want %q", name, key, has[key], value)
				}
			}
			// The external ids are still the same.
			_, err = transact(ctx, socket, operation{"op": "wait", "table": "Bridge", "where": where("_uuid", b.UUID),
				"columns": []string{"external_ids"}, "until": "==", "rows": []any{map[string]any{"external_ids": encodeMap(has)}}, "timeout": 0},
				change("delete", b.UUID[:]))
		}
	}
	if err != nil {
		return fmt.Errorf("delete the bridge %s of Open vSwitch: %w", name, err)
	}
	return nil
}

func where(column string, value any) []any { return []any{[]any{column, "==", value}} }

// change adds a bridge, or removes it: rows without a reference are deleted.
func change(how string, bridge []string) operation {
	return operation{"op": "mutate", "table": "Open_vSwitch", "where": []any{}, "mutations": []any{
		[]any{"bridges", how, bridge}, []any{"next_cfg", "+=", 1},
	}}
}
