package bus

import (
	"encoding/json"
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
	item     *field        // of an array of objects: what each item is, or nil
	code     snapshot.Code // of faults in the value
}

// shape is what an object of a request may look like.
type shape struct {
	fields []*field
	byName map[string]*field
	folded map[string]string // lower-case name → name
	hasIDs bool              // here or further in
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
		case name == "":
			panic(fmt.Sprintf("bus: field %s of %v has no name", sf.Name, t))
		default:
			f := &field{name: name, target: target, index: at, typ: sf.Type, optional: opts == "omitempty", code: code}
			f.complete()
			s.hasIDs = s.hasIDs || f.hasIDs()
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
	switch {
	case t.Kind() == reflect.Struct:
		f.object = &shape{byName: map[string]*field{}, folded: map[string]string{}}
		f.object.add(t, 0, nil, f.code)
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		f.item = &field{typ: t.Elem(), code: f.code}
		f.item.complete()
	}
	if f.wants() == "" {
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

func (f *field) hasIDs() bool {
	return f.isID || f.object != nil && f.object.hasIDs || f.item != nil && f.item.hasIDs()
}

// nullable tells a member that must be there and may be null.
func (f *field) nullable() bool { return f.typ.Kind() == reflect.Pointer && !f.optional }

var (
	messagesType = reflect.TypeFor[snapshot.Messages]()
	includeType  = reflect.TypeFor[snapshot.Include]()
	bytesType    = reflect.TypeFor[[]byte]()
	stringsType  = reflect.TypeFor[[]string]()
	numberType   = reflect.TypeFor[json.Number]()
)

// maxStrings bounds an array of strings.
const maxStrings = 1000

// wants says in words what the member must be; "" for an unknown type.
func (f *field) wants() string {
	t := f.value()
	switch {
	case f.isID && f.nullable():
		return fmt.Sprintf("a string of 1 to %d bytes, or null for none", snapshot.MaxIDBytes)
	case f.isID:
		return fmt.Sprintf("a non-empty string of at most %d bytes", snapshot.MaxIDBytes)
	case t == messagesType:
		return "an array"
	case t == includeType:
		return `an array of "files" and "conversation"`
	case t == bytesType:
		return "a string in standard base64 with padding"
	case t == stringsType:
		return fmt.Sprintf("an array of at most %d strings", maxStrings)
	case t == numberType:
		return "a number"
	case f.item != nil:
		return "an array of objects"
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
