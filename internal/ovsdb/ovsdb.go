// Package ovsdb reads the bridges of Open vSwitch from its database server, by
// one transaction (RFC 7047) on its UNIX socket.
package ovsdb

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
)

// DefaultSocket is where distributions have the server's socket.
const DefaultSocket = "/var/run/openvswitch/db.sock"

type operation struct {
	Op      string   `json:"op"`
	Table   string   `json:"table"`
	Where   []string `json:"where"`
	Columns []string `json:"columns"`
}

type row struct {
	UUID       reference       `json:"_uuid"`
	Name       string          `json:"name"`
	Ports      json.RawMessage `json:"ports"`
	Interfaces json.RawMessage `json:"interfaces"`
}

type reference [2]string // "uuid", its value

// Bridges returns the interfaces of each bridge, sorted.
func Bridges(ctx context.Context, socket string) (map[string][]string, error) {
	all, err := request(ctx, socket)
	if err != nil {
		return nil, fmt.Errorf("read the bridges of Open vSwitch at %s: %w", socket, err)
	}
	return all, nil
}

func request(ctx context.Context, socket string) (map[string][]string, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	read := func(table string, columns ...string) operation {
		return operation{Op: "select", Table: table, Where: []string{}, Columns: append(columns, "name")}
	}
	const id = 1
	err = json.NewEncoder(conn).Encode(map[string]any{"id": id, "method": "transact", "params": []any{
		"Open_vSwitch", read("Bridge", "ports"), read("Port", "_uuid", "interfaces"), read("Interface", "_uuid"),
	}})
	if err != nil {
		return nil, err
	}
	replies := json.NewDecoder(conn)
	for {
		var reply struct {
			ID     any             `json:"id"`
			Method string          `json:"method"` // of the server's requests
			Error  json.RawMessage `json:"error"`
			Result []struct {
				Error   string `json:"error"`
				Details string `json:"details"`
				Rows    []row  `json:"rows"`
			} `json:"result"`
		}
		if err := replies.Decode(&reply); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return nil, err
		}
		if reply.Method != "" || reply.ID != float64(id) {
			continue
		}
		if len(reply.Error) > 0 && string(reply.Error) != "null" {
			return nil, fmt.Errorf("the server answers %.200s", reply.Error)
		}
		for _, r := range reply.Result {
			if r.Error != "" {
				return nil, fmt.Errorf("the server answers %s: %s", r.Error, r.Details)
			}
		}
		if len(reply.Result) != 3 {
			return nil, fmt.Errorf("the server answers %d of 3 operations", len(reply.Result))
		}
		return join(reply.Result[0].Rows, reply.Result[1].Rows, reply.Result[2].Rows)
	}
}

func join(bridges, ports, interfaces []row) (map[string][]string, error) {
	name := map[reference]string{}
	for _, i := range interfaces {
		name[i.UUID] = i.Name
	}
	of := map[reference][]string{} // interfaces by port
	for _, p := range ports {
		list, err := references(p.Interfaces)
		if err != nil {
			return nil, err
		}
		for _, i := range list {
			of[p.UUID] = append(of[p.UUID], name[i])
		}
	}
	all := map[string][]string{}
	for _, b := range bridges {
		list, err := references(b.Ports)
		if err != nil {
			return nil, err
		}
		all[b.Name] = []string{}
		for _, p := range list {
			all[b.Name] = append(all[b.Name], of[p]...)
		}
		slices.Sort(all[b.Name])
	}
	return all, nil
}

// references decodes a set, which is one value if it has one.
func references(text json.RawMessage) ([]reference, error) {
	var one reference
	if err := json.Unmarshal(text, &one); err == nil {
		return []reference{one}, nil
	}
	var set [2]json.RawMessage // "set", values
	var list []reference
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, fmt.Errorf("%.80s is not a set of references: %w", text, err)
	}
	if err := json.Unmarshal(set[1], &list); err != nil {
		return nil, fmt.Errorf("%.80s is not a set of references: %w", text, err)
	}
	return list, nil
}
