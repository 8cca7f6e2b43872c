package bus

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"sandkeep/internal/snapshot"
)

// field is a member that a request may have.
type field struct {
	name     string
	target   int   // which of the decode targets has it
	index    []int // of the struct field
	typ      reflect.Type
	optional bool          // json tag with omitempty: absent and null are the same
	isID     bool          // checked before all other fields
	object   *shape        // of a nested object, or nil
	code     snapshot.Code // of faults in the value
}

// shape is what an object of a request may look like.
type shape struct {
	fields []*field
	byName map[string]*field
	folded map[string]string // lower-case name → name
}

var shapes sync.Map // [2]reflect.Type → *shape

// shapeOf flattens the targets, two pointers to structs, into one shape.
func shapeOf(targets []any) *shape {
	key := [2]reflect.Type{reflect.TypeOf(targets[0]), reflect.TypeOf(targets[1])}
	if s, ok := shapes.Load(key); ok {
		return s.(*shape)
	}
	s := &shape{byName: map[string]*field{}, folded: map[string]string{}}
	for i, t := range targets {
		s.add(reflect.TypeOf(t).Elem(), i, nil, snapshot.BadRequest)
	}
	shapes.Store(key, s)
	return s
}

func (s *shape) add(t reflect.Type, target int, index []int, code snapshot.Code) {
	for i := range t.NumField() {
		sf := t.Field(i)
		at := append(slices.Clone(index), i)
		name, opts, _ := strings.Cut(sf.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case sf.Anonymous && name == "":
			s.add(sf.Type, target, at, code)
		default:
			f := &field{name: name, target: target, index: at, typ: sf.Type, optional: opts == "omitempty", code: code}
			f.complete()
			s.fields = append(s.fields, f)
			s.byName[name] = f
			s.folded[strings.ToLower(name)] = name
		}
	}
}

// complete finds out what the type asks for; a type that the codec can't fill
// is a fault of the program.
func (f *field) complete() {
	if f.name == "checkpoint" {
		f.code = snapshot.InvalidEntry
	}
	t := f.value()
	_, validates := reflect.Zero(t).Interface().(interface{ Validate() error })
	f.isID = validates && t.Kind() == reflect.String
	if t.Kind() == reflect.Struct {
		f.object = &shape{byName: map[string]*field{}, folded: map[string]string{}}
		f.object.add(t, 0, nil, f.code)
	}
	if f.name == "" || f.wants() == "" {
		panic(fmt.Sprintf("bus: no decoding for member %q of type %v", f.name, f.typ))
	}
}

// value is the type without its pointer.
func (f *field) value() reflect.Type {
	if f.typ.Kind() == reflect.Pointer {
		return f.typ.Elem()
	}
	return f.typ
}

// nullable tells a member that must be there and may be null.
func (f *field) nullable() bool { return f.typ.Kind() == reflect.Pointer && !f.optional }

var (
	messagesType = reflect.TypeFor[snapshot.Messages]()
	includeType  = reflect.TypeFor[snapshot.Include]()
	bytesType    = reflect.TypeFor[[]byte]()
)

// wants says in words what the member must be; "" for an unknown type.
func (f *field) wants() string {
	t := f.value()
	switch {
	case f.isID:
		return fmt.Sprintf("a non-empty string of at most %d bytes", snapshot.MaxIDBytes)
	case t == messagesType:
		return "an array"
	case t == includeType:
		return `an array of "files" and "conversation"`
	case t == bytesType:
		return "a string in standard base64 with padding"
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int64, reflect.Uint64:
		return "a whole number, 0 or more"
	case reflect.Float64:
		return "a finite number"
	case reflect.Struct:
		return "an object"
	}
	return ""
}

// names lists the members for a message, without those of the protocol itself.
func (s *shape) names() string {
	out := slices.DeleteFunc(slices.Sorted(maps.Keys(s.byName)), func(n string) bool { return strings.HasPrefix(n, "$") })
	return strings.Join(out, ", ")
}
