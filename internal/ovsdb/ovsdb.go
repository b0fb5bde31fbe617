// Package ovsdb reads, creates and deletes bridges of Open vSwitch in its database,
// by transactions (RFC 7047) on the UNIX socket of the database server.
package ovsdb

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
)

// DefaultSocket is where distributions have the server's socket.
const DefaultSocket = "/var/run/openvswitch/db.sock"

type operation map[string]any

type result struct {
	Error   string `json:"error"`
	Details string `json:"details"`
	Rows    []row  `json:"rows"`
}

// transact executes the operations, all or none, and returns their results.
func transact(ctx context.Context, socket string, operations ...operation) ([]result, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	params := []any{"Open_vSwitch"}
	for _, o := range operations {
		params = append(params, o)
	}
	const id = 1
	if err := json.NewEncoder(conn).Encode(map[string]any{"id": id, "method": "transact", "params": params}); err != nil {
		return nil, err
	}
	replies := json.NewDecoder(conn)
	for {
		var reply struct {
			ID     any             `json:"id"`
			Method string          `json:"method"` // of the server's requests
			Error  json.RawMessage `json:"error"`
			Result []result        `json:"result"`
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
		for _, r := range reply.Result { // an error of the commit comes after those of the operations
			if r.Error != "" {
				return nil, fmt.Errorf("the server answers %s: %s", r.Error, r.Details)
			}
		}
		if len(reply.Result) != len(operations) {
			return nil, fmt.Errorf("the server answers %d of %d operations", len(reply.Result), len(operations))
		}
		return reply.Result, nil
	}
}

type row struct {
	UUID        reference       `json:"_uuid"`
	Name        string          `json:"name"`
	Ports       json.RawMessage `json:"ports"`
	Interfaces  json.RawMessage `json:"interfaces"`
	ExternalIDs json.RawMessage `json:"external_ids"`
	OFPort      json.RawMessage `json:"ofport"`
	Error       json.RawMessage `json:"error"`
}

type reference [2]string // "uuid", its value

// values decodes a set, which is one value if it has one.
func values[V any](text json.RawMessage) ([]V, error) {
	var set [2]json.RawMessage // "set", values
	var kind string
	if json.Unmarshal(text, &set) == nil && json.Unmarshal(set[0], &kind) == nil && kind == "set" {
		text = set[1]
	} else {
		text = append(append([]byte("["), text...), ']')
	}
	var list []V
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("%.80s is not a set: %w", text, err)
	}
	return list, nil
}

func mapOf(text json.RawMessage) (map[string]string, error) {
	var pairs [2]json.RawMessage // "map", pairs
	var list [][2]string
	err := json.Unmarshal(text, &pairs)
	if err == nil {
		err = json.Unmarshal(pairs[1], &list)
	}
	if err != nil {
		return nil, fmt.Errorf("%.80s is not a map of texts: %w", text, err)
	}
	m := map[string]string{}
	for _, pair := range list {
		m[pair[0]] = pair[1]
	}
	return m, nil
}

func encodeMap(m map[string]string) []any {
	pairs := [][2]string{}
	for key, value := range m {
		pairs = append(pairs, [2]string{key, value})
	}
	return []any{"map", pairs}
}
